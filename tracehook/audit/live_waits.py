"""Who waits for whom in a job that runs: from the slots of calls in the rings, see :mod:`waits`.

A rank that is ahead for a moment is no hang: it counts once its process has made no call for a while.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tracehook.audit import blame
from tracehook.audit.called import Caller, Callers
from tracehook.audit.waits import Wait, waits
from tracehook.log.calls import HEAD_BYTES, SLOT_BYTES, Calls, counted, unpack

STILL_AFTER: Final = 5.0  # seconds without a call after which a rank that is ahead waits
_LOOK_EVERY: Final = 2.0  # seconds, or more: to look at the slots of a thousand rings takes a while
_BEFORE: Final = 4096  # calls of one communicator, of all processes together
_SHARE: Final = 20  # of that time, so that looking takes at most a twentieth of a core

ReadSlots = Callable[[str, int], list[bytes]]


@dataclass
class Seen:
    """What was last seen of the slots of one process."""

    heads: tuple[tuple[int, int, int], ...] = ()
    parts: dict[str, Calls] | None = None  # None: not read since the heads changed

    @property
    def moved_ns(self) -> int | None:
        """When it last made a call, by the clock of its ring."""
        return max((moved for _, made, moved in self.heads if made), default=None)


class Running(NamedTuple):
    """What is known of a process besides its slots. `clock_ns`: of its ring, now; None if it does not run."""

    rank: int | None
    pid: int
    ended: bool
    clock_ns: int | None
    called: Mapping[str, Calls]  # communicators that ended
    names: Mapping[str, str]  # of groups, by communicator


class Hang(NamedTuple):
    """A communicator in whose call ranks wait."""

    group: str
    made: dict[int, list[str]]  # ranks, by how many calls they made
    waiting: list[str]
    missing: list[str]
    call: str
    seconds: float  # for which the first of them waits
    is_cause: bool  # the audit would blame a missing rank for it
    behind: int  # missing ranks that wait themselves, in another call: then this is a consequence


@dataclass
class LiveWaits:
    """The hangs of a directory, as of the last :meth:`look`."""

    hangs: list[Hang] = field(default_factory=list)
    _seen: dict[str, Seen] = field(default_factory=dict)
    _next: float = float("-inf")  # when to look again

    def look(self, running: Mapping[str, Running], read: ReadSlots, now: float) -> None:
        """Look at the slots of all processes, if the last look is long enough ago."""
        if now < self._next:
            return
        begin = time.monotonic()
        self._seen = {name: self._see(name, read) for name in running}
        still = {name: seconds for name in running if (seconds := self._still(name, running[name])) >= STILL_AFTER}
        self.hangs = _hangs(self._callers(running, read), still, list(running)) if still else []
        self._next = now + max(_LOOK_EVERY, _SHARE * (time.monotonic() - begin))

    def _see(self, name: str, read: ReadSlots) -> Seen:
        heads = tuple(found for head in read(name, HEAD_BYTES) if (found := counted(head)) is not None)
        before = self._seen.get(name, Seen())
        return before if before.heads == heads else Seen(heads)

    def _still(self, name: str, process: Running) -> float:
        moved = self._seen[name].moved_ns
        return 0.0 if moved is None or process.clock_ns is None else (process.clock_ns - moved) / 1e9

    def _callers(self, running: Mapping[str, Running], read: ReadSlots) -> Callers:
        processes: list[Caller] = []
        names: dict[str, str] = {}
        for number, (name, process) in enumerate(running.items()):
            seen = self._seen[name]
            if seen.parts is None:
                slots = read(name, SLOT_BYTES) if seen.heads else []
                found = (unpack(slot) for slot in slots if len(slot) == SLOT_BYTES)
                seen.parts = {calls.comm: calls for calls in found if calls is not None}
            processes.append(
                Caller(
                    number=number,
                    rank=process.rank,
                    pid=process.pid,
                    ended=process.ended,
                    last_event=None,
                    shift_ns=0,
                    parts={**process.called, **seen.parts},
                    how=None,
                    exception=None,
                    signal=None,
                    sender=None,
                    ended_ns=None,
                )
            )
            names.update(process.names)
        return Callers(_in_question(processes), names)


def _in_question(processes: Sequence[Caller]) -> list[Caller]:
    """Leave of the calls those that not all ranks of their communicator made, and, of few processes, more before them.

    Who waits, waits in one of these; those before tell in which call ranks first came apart.
    """
    least: dict[str, int] = {}
    for process in processes:
        for comm, calls in process.parts.items():
            least[comm] = min(calls.collectives, least.get(comm, calls.collectives))
    before = _BEFORE // len(processes)
    for process in processes:
        process.parts = {
            comm: calls._replace(last=tuple(call for call in calls.last if call.number >= least[comm] - before))
            for comm, calls in process.parts.items()
        }
    return list(processes)


def _hangs(job: Callers, still: Mapping[str, float], names: Sequence[str]) -> list[Hang]:
    found = {wait.process.number: wait for wait in waits(job) if names[wait.process.number] in still}
    by_call: dict[tuple[str, int, bool], list[Wait]] = defaultdict(list)
    for wait in found.values():
        by_call[wait.comm, wait.number, wait.step.is_transfer].append(wait)
    causes = {(each.comm, each.process) for each in blame.findings(job) if each.rule == "rank-missing"}
    hangs = [_hang(job, comm, alike, found, still, names, causes) for (comm, _, _), alike in by_call.items()]
    return sorted(hangs, key=lambda hang: (not hang.is_cause, hang.behind, -hang.seconds))


def _hang(
    job: Callers,
    comm: str,
    alike: Sequence[Wait],
    found: Mapping[int, Wait],
    still: Mapping[str, float],
    names: Sequence[str],
    causes: Collection[tuple[str | None, int | None]],
) -> Hang:
    made: dict[int, list[str]] = defaultdict(list)
    if not alike[0].step.is_transfer:
        for _, member in sorted(job.members.get(comm, {}).items()):
            made[member.calls.collectives].append(member.process.name)
    missing = {process.number: process for wait in alike for process in wait.missing}
    return Hang(
        group=f"group {job.names[comm]}" if comm in job.names else f"communicator {comm}",
        made=dict(sorted(made.items())),
        waiting=[wait.process.name for wait in alike],
        missing=[process.name for process in missing.values()],
        call=job.described(comm, alike[0].step.call),
        seconds=max(still[names[wait.process.number]] for wait in alike),
        is_cause=any((comm, number) in causes for number in missing),
        behind=sum(number in found for number in missing),
    )
