"""Who waits for whom in a job that runs: from the slots of calls in the rings, see :mod:`waits`.

A rank that is ahead for a moment is no hang: it counts once its process has made no call for a while.

A rank that did not come and waits in no call may do anything. So the watch asks its process for the stacks of its
threads, and again every ten seconds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tracehook.audit import blame, semaphores
from tracehook.audit.called import COLLECTIVE, Caller, Callers, Wait, by_process, name_of
from tracehook.audit.finding import ProgramPlace
from tracehook.audit.host_waits import AGREEMENT
from tracehook.audit.stacks import place_of
from tracehook.audit.waits import waits
from tracehook.log.calls import SLOT_BYTES, Calls, key_of, moved_of, unpack
from tracehook.log.growing import GrowingDirectory
from tracehook.log.stacks import ask_rings

STILL_AFTER: Final = 5.0  # seconds without a call after which a rank that is ahead waits
_LOOK_EVERY: Final = 2.0  # seconds, or more: to go through the calls of a thousand processes takes a while
_BEFORE: Final = 4096  # calls of one communicator, of all processes together
_SHARE: Final = 20  # of that time, so that looking takes at most a twentieth of a core
_MOST_BLAMED: Final = 256  # processes of a job of which all chains of ranks that wait are gone through
_NO_GROUP: Final = "torch.distributed"  # which group of it that is, is not known
_ASK_EVERY: Final = 10.0  # seconds
_PATIENCE: Final = 3.0  # seconds; who cannot get the GIL answers after two


class Seen(NamedTuple):
    """The heads of the slots of one process, as last seen, and when it last made a call, by its ring's clock."""

    heads: tuple[bytes, ...] = ()
    moved_ns: int | None = None


class Running(NamedTuple):
    """What is known of a process besides its slots. `clock_ns`: of its ring, now; None if it does not run."""

    rank: int | None
    pid: int
    ended: bool
    clock_ns: int | None
    called: Mapping[str, Calls]  # communicators that ended
    names: Mapping[str, str]  # of groups, by communicator
    agreeing: frozenset[str]  # communicators in whose agreements it waits
    groups: Sequence[tuple[list[int], bool]] = ()  # of torch: their global ranks, and whether their backend is NCCL
    is_here: bool = False  # on this host


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
    places: tuple[ProgramPlace, ...] = ()  # where the missing ranks were that wait in no call, as far as they told


@dataclass
class LiveWaits:
    """The hangs of a directory, as of the last :meth:`look`."""

    hangs: list[Hang] = field(default_factory=list)
    _seen: dict[str, Seen] = field(default_factory=dict)
    _known: tuple[object, ...] = ()  # what the hangs were made of
    _at: float = float("-inf")  # when that was
    _next: float = float("-inf")  # when to look again
    _asked_at: float = float("-inf")
    _mute: set[str] = field(default_factory=set)  # those that did not answer

    def see(self, name: str, heads: Sequence[bytes]) -> None:
        """Note the heads of the slots of a process."""
        before = self._seen.get(name)
        if before is None or list(before.heads) != heads:
            self._seen[name] = Seen(tuple(heads), max(filter(None, map(moved_of, heads)), default=None))

    def look(self, running: Callable[[], Mapping[str, Running]], logs: GrowingDirectory, now: float) -> None:
        """Find out who waits for whom, if the last time is long enough ago.

        `logs` have the slots of calls, and `running` tells the rest.
        """
        if now < self._next:
            return
        begin = time.monotonic()
        job = running()
        self._seen = {name: seen for name, seen in self._seen.items() if name in job}
        still = self._those_still(job)
        agreeing = {name: process.agreeing for name, process in job.items() if process.agreeing}
        took = 0.0
        if still and (self._seen, set(still), agreeing) == self._known and not self._asks(now):
            self.hangs = [hang._replace(seconds=hang.seconds + now - self._at) for hang in self.hangs]
        else:
            if still:
                for name in job:  # what was seen some time ago and what is seen now do not make a picture
                    found = logs.ring_heads(name)
                    self.see(name, found[1] if found else [])
                still = self._those_still(job)
            quiet = {name: self._still(name, process) for name, process in job.items()}
            self.hangs = _hangs(self._callers(job, logs), quiet) if still else []
            self._known = (dict(self._seen), set(still), agreeing)
            took = time.monotonic() - begin
            if self._asks(now):
                self._asked_at = now
                if self._ask({name: job[name] for name in still}, logs):
                    self.hangs = _hangs(self._callers(job, logs), quiet)
        self._at = now
        self._next = now + max(_LOOK_EVERY, _SHARE * (took or time.monotonic() - begin))

    def _asks(self, now: float) -> bool:
        """Whether ranks wait, and the last question is long enough ago."""
        return bool(self.hangs) and now - self._asked_at >= _ASK_EVERY

    def _ask(self, still: Mapping[str, Running], logs: GrowingDirectory) -> bool:
        """Have processes write their stacks that wait in no call while others wait; return whether one did."""
        # Not those in a function of torch.distributed, as their stacks said: that may be over soon.
        waiting = {name for hang in self.hangs for name in hang.waiting if hang.group != _NO_GROUP}
        rings = {}
        for name, process in still.items():
            ring = logs.ring(name) if process.is_here and name not in self._mute else None
            if ring is not None and name_of(process.rank, process.pid) not in waiting:
                rings[Path(ring)] = name
        told = ask_rings(rings, _PATIENCE)
        self._mute |= {name for ring, name in rings.items() if ring not in told}
        return bool(told)

    def _those_still(self, job: Mapping[str, Running]) -> dict[str, float]:
        return {name: seconds for name in job if (seconds := self._still(name, job[name])) >= STILL_AFTER}

    def _still(self, name: str, process: Running) -> float:
        moved = self._seen[name].moved_ns if name in self._seen else None
        if moved is None:  # it is in the end of its last communicator, behind calls that it made
            moved = max((calls.moved_ns for calls in process.called.values()), default=None)
        return 0.0 if moved is None or process.clock_ns is None else (process.clock_ns - moved) / 1e9

    def _callers(self, job: Mapping[str, Running], logs: GrowingDirectory) -> Callers:
        names: dict[str, str] = {}
        parts = self._parts(job, logs)
        processes: list[Caller] = []
        for number, (name, process) in enumerate(job.items()):
            made = Caller(number, process.rank, process.pid, process.ended, parts=parts[name])
            made.making = self._making(name)
            made.agreeing = set(process.agreeing)
            made.groups = list(process.groups)
            made.stacks = logs.stacks(name) if len(job) <= _MOST_BLAMED else None
            processes.append(made)
            names.update(process.names)
        return Callers(processes, names)

    def _calls(self, name: str) -> list[Calls]:
        heads = self._seen[name].heads if name in self._seen else ()
        return [calls for head in heads if (calls := unpack(head)) is not None]

    def _making(self, name: str) -> list[Calls]:
        return [calls for calls in self._calls(name) if calls.making is not None]

    def _parts(self, job: Mapping[str, Running], logs: GrowingDirectory) -> dict[str, dict[str, Calls]]:
        """Return of each process its communicators, with the calls that not all ranks of them made.

        Who waits, waits in one of these. Of few processes there are more before them: they tell in which call ranks
        first came apart. Slots that have no such call are not read.
        """
        heads = {name: [calls for calls in self._calls(name) if calls.making is None] for name in job}
        parts = {
            name: {**process.called, **{calls.comm: calls for calls in heads[name]}} for name, process in job.items()
        }
        least: dict[str, int] = {}
        for each in parts.values():
            for comm, calls in each.items():
                least[comm] = min(calls.collectives, least.get(comm, calls.collectives))
        before = _BEFORE // len(job)
        since = {comm: count - before for comm, count in least.items()}
        for name, each in parts.items():
            alive = {calls.comm for calls in heads[name]}
            if any(each[comm].collectives > since[comm] or each[comm].transfers for comm in alive):
                for slot in logs.ring_slots(name):
                    found = unpack(slot, since.get(key_of(slot), 0)) if len(slot) == SLOT_BYTES else None
                    if found is not None and found.making is None:
                        each[found.comm] = found
            for comm in each.keys() - alive:
                ended = each[comm]
                each[comm] = ended._replace(last=tuple(call for call in ended.last if call.number >= since[comm]))
        return parts


def _hangs(job: Callers, quiet: Mapping[str, float]) -> list[Hang]:
    """Return the hangs. `quiet`: by process, in the order of their numbers, since when it makes no call."""
    seconds = list(quiet.values())
    all_waits = waits(job)
    waiting = {wait.process.number for wait in all_waits}
    if len(seconds) <= _MOST_BLAMED:
        causes: set[int | None] = {each.process for each in blame.findings(job) if each.rule == "rank-missing"}
    else:  # who waits for nobody; of ranks that wait for each other in a circle, only the audit names one
        different = {id(wait.missing): wait for wait in all_waits}.values()
        causes = {each.number for wait in different for each in wait.missing if each.number not in waiting}
    found = [wait for wait in all_waits if seconds[wait.process.number] >= STILL_AFTER]
    # A rank that others wait for may wait itself, for less time: the watch tells the cause with the consequence.
    behind, seen = by_process(all_waits), {wait.process.number for wait in found}
    for wait in found:
        for rank in wait.missing:
            if rank.number not in seen:
                seen.add(rank.number)
                found += behind.get(rank.number, [])
    by_call: dict[tuple[str, int, int, str], list[Wait]] = defaultdict(list)
    for wait in found:
        about = semaphores.told(wait) if wait.step.is_semaphore else wait.step.function
        if wait.step.is_transfer:  # those of several pairs of ranks have the same number
            about = f"{job.described(wait.comm, wait.step.call)} {semaphores.named(wait.missing)}"
        by_call[wait.comm, wait.number, wait.step.kind, about].append(wait)
    hung = {wait.process.number for wait in found}
    hangs = [_hang(job, comm, alike, hung, seconds, causes) for (comm, *_), alike in by_call.items()]
    return sorted(hangs, key=lambda hang: (not hang.is_cause, hang.behind, -hang.seconds))


def _hang(
    job: Callers,
    comm: str,
    alike: Sequence[Wait],
    hung: Collection[int],
    quiet: Sequence[float],
    causes: Collection[int | None],
) -> Hang:
    made: dict[int, list[str]] = defaultdict(list)
    if alike[0].step.kind == COLLECTIVE:
        for _, member in sorted(job.members.get(comm, {}).items()):
            made[member.calls.collectives].append(member.process.name)
    different = {id(wait.missing): wait.missing for wait in alike}  # those who wait in a collective share one
    missing = {process.number: process for each in different.values() for process in each}
    is_of_peers = alike[0].step.is_semaphore
    unnamed = job.group(comm) if is_of_peers else f"communicator {comm}"
    call = semaphores.told(alike[0]) if is_of_peers else job.described(comm, alike[0].step.call)
    if function := alike[0].step.function:
        call = f"an {function}" if function == AGREEMENT else f"{function}, outside of NCCL"
    still = [each for each in missing.values() if each.number not in hung]  # of the others the calls wait behind calls
    if ahead := [each for each in still if any(step.call.is_ahead for step in each.in_order)]:
        call += f", to which the device of {semaphores.named(ahead)} has not come"
    return Hang(
        group=f"group {job.names[comm]}" if comm in job.names else unnamed if comm else _NO_GROUP,
        made=dict(sorted(made.items())),
        waiting=[wait.process.name for wait in alike],
        missing=[process.name for process in missing.values()],
        call=call,
        seconds=max(quiet[wait.process.number] for wait in alike),
        is_cause=any(number in causes for number in missing),
        behind=sum(number in hung for number in missing),
        places=tuple(place_of(each.rank, each.at) for each in still if each.rank is not None and each.at is not None),
    )
