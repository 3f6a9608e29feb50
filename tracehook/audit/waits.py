"""Who waits in which call, for whom: found by going through the calls of all processes as their devices would.

A device takes the calls of its process in their order. It comes past a collective when all ranks of the communicator
have come to it. It comes past a send when the other rank has a receive for it, however far that rank has come: those
of one group go together. Calls that are forgotten are taken for done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracehook.audit.called import Caller, Callers, Member, Step


class Wait(NamedTuple):
    """Who waits in which call, for whom."""

    process: Caller
    comm: str
    step: Step
    number: int  # of the collective, or of the transfer of this kind with that peer; from 0
    missing: tuple[Caller, ...]
    made: int  # to how many such calls the first missing one came


class _Device:
    """How far one process has come."""

    def __init__(self, process: Caller) -> None:
        self.process = process
        self.steps: Sequence[Step] = list(process.steps.values())
        self.at = 0  # place of the next call in `steps`
        self.places = {
            (step.comm, step.call.number): place for place, step in enumerate(self.steps) if not step.is_transfer
        }

    @property
    def next(self) -> Step | None:
        """The call to which it has come."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    def has_come_to(self, comm: str, number: int) -> bool:
        """Whether it has come to that collective."""
        calls = self.process.parts[comm]
        place = self.places.get((comm, number))
        return number < calls.collectives if place is None else place <= self.at

    def came_to(self, comm: str, number: int) -> int:
        """Return to how many collectives it has come, of those before that one."""
        ahead = sum(place > self.at for (other, _), place in self.places.items() if other == comm)
        return min(number, self.process.parts[comm].collectives - ahead)


def waits(job: Callers) -> list[Wait]:
    """Return for each process that waits the call in which it does."""
    devices = {process.number: _Device(process) for process in job.processes}
    comparable = dict(job.comparable())
    moves = True
    while moves:
        moves = False
        for device in devices.values():
            while device.next is not None and not _missing(device, device.next, comparable, devices):
                device.at += 1
                moves = True
    found = []
    for device in devices.values():
        step, process = device.next, device.process
        if step is not None and (not process.ended or process.how == "exception"):
            missing = _missing(device, step, comparable, devices)
            found.append(_wait(device, step, missing, devices))
    return found


def _missing(
    device: _Device, step: Step, comparable: Mapping[str, Mapping[int, Member]], devices: Mapping[int, _Device]
) -> list[Member]:
    """Return who has not come to a call to which a device has come."""
    process = device.process
    others = [member for member in comparable.get(step.comm, {}).values() if member.process is not process]
    if not step.is_transfer:
        number = step.call.number
        return [member for member in others if not devices[member.process.number].has_come_to(step.comm, number)]
    number, mine = process.transfers_before(step), process.parts[step.comm].rank
    return [
        member
        for member in others
        if member.calls.rank == step.call.root
        and not member.calls.is_crowded
        and not _answered(devices[member.process.number], step, mine, number)
    ]


def _answered(other: _Device, step: Step, rank: int, number: int) -> bool:
    """Whether another device has, or will have, the other half of a transfer."""
    made = _answers(other.process, step, rank)
    if made <= number:
        return False
    stuck = other.next
    orders = other.process.transfer_orders(step.comm, rank, _answer(step))
    place = number - (made - len(orders))
    # It waits in a collective before: whether that ends by itself shows when all others have gone as far as they can.
    return stuck is None or stuck.is_transfer or place < 0 or orders[place] < stuck.call.order


def _answer(step: Step) -> str:
    return "recv" if step.call.operation == "send" else "send"


def _answers(process: Caller, step: Step, rank: int) -> int:
    """Return how many of the other halves of transfers like this one a process has called."""
    peers = [peer for peer in process.parts[step.comm].peers if peer.rank == rank]
    return sum(peer.received if _answer(step) == "recv" else peer.sent for peer in peers)


def _wait(device: _Device, step: Step, missing: Sequence[Member], devices: Mapping[int, _Device]) -> Wait:
    process = device.process
    first = devices[missing[0].process.number]
    if step.is_transfer:
        number = process.transfers_before(step)
        made = min(number, _answers(first.process, step, process.parts[step.comm].rank))
    else:
        number = step.call.number
        made = first.came_to(step.comm, number)
    return Wait(process, step.comm, step, number, tuple(member.process for member in missing), made)
