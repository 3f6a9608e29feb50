"""Ranks that did not come, or ended in order, while others talked to them: who hangs or fails then is not to blame."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import NamedTuple

from tracehook.audit.called import COLLECTIVE, TRANSFER, Caller, Callers, Wait
from tracehook.audit.finding import UNDECIDED
from tracehook.audit.programs import run_alike
from tracehook.audit.semaphores import named
from tracehook.audit.words import kind, since, told_call
from tracehook.log.text import ordinal

# What Gloo and the stores of torch.distributed raise where the other end of a connection has gone.
_LOST = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|recv(Value|Vector|Bytes)? failed|sendBytes failed|failed to recv"
)
# What Gloo raises where nobody came until the group's time-out.
_IN_VAIN = re.compile(r"Timed out waiting \d+ms for (send|recv) operation")
_MOMENT = 1_000_000_000  # nanoseconds
_WAIT_IN_THE_END = (
    "Look at why the named rank ended: a rank that others still talk to has to wait for them, as in a barrier before "
    "dist.destroy_process_group()."
)


class Left(NamedTuple):
    """Ranks whom others waited for in vain, outside of NCCL."""

    blamed: list[Caller]
    others: list[Caller]
    told: str
    ns: int | None  # since when that is known
    advice: str | None = None  # None: that of the rule


class WentOn(NamedTuple):
    """Ranks that wait in a call to which others did not come, because these had ended in order."""

    its: list[Wait]
    gone: list[Caller]
    is_sure: bool  # else one of those may have ended too early
    told: str


def missed(job: Callers) -> Left | None:
    """Return who did not come, if ranks gave up in a call of Gloo: who neither failed nor stands in such a call."""
    gave_up = [each for each in job.processes if each.failed and _IN_VAIN.search(each.exception or "")]
    since = min((each.ended_ns for each in gave_up if each.ended_ns is not None), default=None)
    if since is None or any(_is_before(each, since) for each in job.processes if each not in gave_up):
        return None
    late = [each for each in job.processes if each not in gave_up and not each.group_call]
    if not late:
        return None
    doubt = f", and {UNDECIDED}" if len(late) > 1 else ""
    told = f"{named(late)} did not come to a call of torch.distributed, outside of NCCL{doubt}"
    told += f"; {named(gave_up)} gave up waiting there: {gave_up[0].exception}"
    return Left(late, gave_up, told, since - 1)  # before what they raised, which is its consequence


def leavers(job: Callers) -> Left | None:
    """Return those to blame, and what to say, if ranks lost their connection to ranks that had ended.

    If more ranks ended than lost a connection, those few went on where the others had come to their end.
    """
    lost = [each for each in job.processes if each.failed and _LOST.search(each.exception or "")]
    since = min((each.ended_ns for each in lost if each.ended_ns is not None), default=None)
    if since is None or any(_is_before(each, since) for each in job.processes if each.failed and each not in lost):
        return None
    gone = [each for each in job.processes if each.ended_well and _is_before(each, since)]
    if len(gone) > len(lost):
        told = f"{named(lost)} went on where {named(gone)}, which are more, had ended in order{_said(lost)}"
        return Left(lost, gone, told, _first_ns(lost, gone), _WAIT_IN_THE_END)
    if not gone:
        return None
    last = gone[0].last_step if len(gone) == 1 else None
    after = f", after its {told_call(job, last)}" if last is not None else ""
    told = f"{named(gone)} ended in order{after}, while others still talked to it{_said(lost)}"
    return Left(gone, lost, told, _first_ns(lost, gone), _WAIT_IN_THE_END)


def beside(job: Callers, one: Caller, its: Sequence[Wait], waiting: Container[int]) -> list[Caller]:
    """Return those of whom one may wait for another one outside of NCCL, with `one`; nobody if it is alone.

    They did not come to the same calls, wait in none, and stopped at the same moment.
    """
    missing = {each.number: each for wait in its for each in wait.missing if each.number not in waiting}
    idle = [
        each for each in missing.values() if not (each.ended or each.how) and each.number not in (job.standing or ())
    ]
    found = [each for each in idle if abs((each.moved_ns or 0) - (one.moved_ns or 0)) < _MOMENT]
    return found if one in found and len(found) > 1 else []


def went_on(job: Callers, waited: Sequence[Wait]) -> list[WentOn]:
    """Return the calls of few ranks to which others did not come that ended in order, if more ranks ended so."""
    over = [each for each in job.processes if each.ended_well]
    ended, waiting = {each.number for each in over}, {wait.process.number for wait in waited}
    by_call: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
    for wait in waited:
        missing = {each.number for each in wait.missing}
        if (
            wait.step.kind in (COLLECTIVE, TRANSFER)
            and not wait.some
            and ended & missing
            and missing <= ended | waiting
        ):
            of_one = wait.process.number if wait.step.is_transfer else None
            by_call[wait.comm, wait.step.kind, wait.number, of_one].append(wait)
    if len(over) <= len({wait.process.number for its in by_call.values() for wait in its}):
        return []
    found = []
    for its in by_call.values():
        gone = [each for each in its[0].missing if each.number in ended]
        is_longer = _is_longer(its, gone, over)
        if is_longer is not False:
            found.append(WentOn(its, gone, bool(is_longer), _told_few(job, its, gone, len(over), bool(is_longer))))
    return found


def _is_longer(its: Sequence[Wait], gone: Sequence[Caller], over: Sequence[Caller]) -> bool | None:
    """Whether who waits made more calls than ranks of the same program; False: who ended made fewer; None: unknown."""
    rest = [each for each in over if each not in gone]
    few = {wait.process.number: wait.process for wait in its}.values()
    seen = {one.made > other.made for one in few for other in rest if run_alike(one, other)}
    seen |= {one.made >= other.made for one in gone for other in rest if run_alike(one, other)}
    if len(seen) == 1:
        return seen.pop()
    counts = {each.parts[its[0].comm].collectives for each in gone if its[0].comm in each.parts}
    is_of_many = its[0].step.kind == COLLECTIVE and len(gone) > len(its) and len(counts) == 1
    return True if not seen and is_of_many else None


def _told_few(job: Callers, its: Sequence[Wait], gone: Sequence[Caller], over: int, is_sure: bool) -> str:
    first, few = its[0], [wait.process for wait in its]
    more, as_many = (", which are more,", "") if len(gone) > len(few) else ("", f", as {over} ranks did")
    return (
        f"{job.group(first.comm)}: {named(few)} {'waits' if len(few) == 1 else 'wait'} in the "
        f"{ordinal(first.number + 1)} call, {job.described(first.comm, first.step.call)}{since(first.process)}; "
        f"{named(gone)}{more} made {first.made} {kind(first)} and ended in order{as_many}"
        f"{'' if is_sure else f', and {UNDECIDED}'}"
    )


def _first_ns(lost: Sequence[Caller], gone: Sequence[Caller]) -> int | None:
    return min((each.ended_ns for each in (*lost, *gone) if each.ended_ns is not None), default=None)


def _said(lost: Sequence[Caller]) -> str:
    return f"; {named(lost)} lost the connection: {lost[0].exception}"


def _is_before(process: Caller, ns: int) -> bool:
    return process.ended_ns is not None and process.ended_ns <= ns
