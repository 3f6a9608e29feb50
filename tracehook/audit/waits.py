"""Who waits in which call, for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tracehook.audit.called import Caller, Callers, Member, Step


class Wait(NamedTuple):
    """Who waits in which call, for whom."""

    process: Caller
    comm: str
    step: Step
    number: int  # of the collective, or of the transfer with that peer
    missing: tuple[Caller, ...]
    made: int  # how many such calls the first missing one made


def waits(job: Callers) -> list[Wait]:
    """Return for each process that waits the first call to which some rank has not come.

    A rank that waits in a call has called what comes after it, perhaps, but its device has not come to that: so whoever
    shares a later call with it waits, too.
    """
    found: dict[int, Wait] = {}
    while True:
        before = {number: wait.step.call.order for number, wait in found.items()}
        for process in job.processes:
            if not process.ended or process.how == "exception":
                wait = _first_wait(job, process, found)
                if wait is not None:
                    found[process.number] = wait
        if before == {number: wait.step.call.order for number, wait in found.items()}:
            return list(found.values())


def _first_wait(job: Callers, process: Caller, found: Mapping[int, Wait]) -> Wait | None:
    return next((wait for step in process.steps.values() if (wait := _wait_in(job, process, step, found))), None)


def _wait_in(job: Callers, process: Caller, step: Step, found: Mapping[int, Wait]) -> Wait | None:
    members = job.members.get(step.comm, {})
    if any(member.calls.adopted for member in members.values()):
        return None
    number, others = step.call.number, [member for member in members.values() if member.process is not process]
    if step.is_transfer:
        number = process.transfers_before(step)
        others = [member for member in others if member.calls.rank == step.call.root and not member.calls.is_crowded]
    missing, made = [], 0
    for member in others:
        count, order = _come(member, process.parts[step.comm].rank, step, number)
        stuck = found.get(member.process.number)
        if count <= number or (stuck is not None and order is not None and order > stuck.step.call.order):
            missing.append(member.process)
            made = min(made, count) if len(missing) > 1 else count
    return Wait(process, step.comm, step, number, tuple(missing), made) if missing else None


def _come(member: Member, rank: int, step: Step, number: int) -> tuple[int, int | None]:
    """Return how many calls another rank made that could be this one, and the place of this one in its order."""
    if not step.is_transfer:
        call = member.call(number)
        return member.calls.collectives, call.order if call is not None else None
    receives = step.call.operation == "send"
    made = sum(peer.received if receives else peer.sent for peer in member.calls.peers if peer.rank == rank)
    orders = member.process.transfer_orders(step.comm, rank, "recv" if receives else "send")
    place = number - (made - len(orders))
    return made, orders[place] if 0 <= place < len(orders) else None
