"""Ranks of a rehearsal that wait for each other: found in what the emulated NCCL says of each long wait.

Its ranks need no log. Of those that have one, the audit tells who is wrong: this module only says what waits.

A wait that takes longer than a second has a file (cpp/rehearsal/nccl/waiting.h). A wait is stuck if a rank for which it
waits is gone, or is stuck itself. Whether a rank that computes will come, nobody knows: for that there is a time limit.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tracehook.audit.chains import breaking, ends
from tracehook.audit.finding import OUTSIDE
from tracehook.audit.host_waits import AGREEMENT
from tracehook.audit.live import Follower

_SURE_AFTER = 5.0
_MOMENT = 1.0  # seconds: ranks that came to such a wait together are named together
_MOST_LINES = 8
_SECOND = 1e9


@dataclass(frozen=True)
class RankId:
    """A process of the job. `rank`: its rank in the job, -1 if the launcher gave it none.

    Of a rank that has not come to where its communicator is made, only `place` is known, its rank in the communicator.
    Then `pid` is 0, and `rank` is -1 unless the communicator has all ranks of the job.
    """

    rank: int
    pid: int
    place: int = -1

    @property
    def name(self) -> str:
        """What to call it."""
        if self.rank >= 0:
            return f"rank {self.rank}"
        return f"pid {self.pid}" if self.pid else f"rank {self.place} of this communicator"

    @property
    def number(self) -> str:
        """How a list of ranks has it."""
        if self.rank >= 0:
            return str(self.rank)
        return str(self.pid) if self.pid else "?"


@dataclass(frozen=True)
class LongWait:
    """A rank that waits in a call on its device for other ranks."""

    who: RankId
    call: str
    communicator: str
    members: tuple[RankId, ...]
    missing: tuple[RankId, ...]
    seconds: float
    key: str = ""  # of the communicator in the log; `communicator` is what its ranks meet under
    group: str = ""  # what the program calls it

    @property
    def where(self) -> str:
        """The communicator, as messages name it."""
        return f"communicator {self.key or self.communicator[:16]}"


class StuckCall(NamedTuple):
    """A call in which ranks wait, and nobody will wake them."""

    sentence: str
    """Who waits for whom."""
    key: str
    """Key of the communicator in the log."""
    ranks: tuple[int, ...]
    """Ranks in the job, those for which the others wait first."""
    since_ns: int
    """When the first of them began to wait, by the clock of the log."""


class Standstill(NamedTuple):
    """Ranks that wait, and nobody will wake them."""

    calls: list[StuckCall]
    """The most telling first, at most eight."""
    more: int
    """How many there are beyond these."""
    pids: frozenset[int]
    """All processes of these communicators."""

    @property
    def lines(self) -> list[str]:
        """One sentence a call."""
        told = [call.sentence for call in self.calls]
        return [*told, f"and ranks wait in {self.more} more calls"] if self.more else told


def find_hang(scratch: Path, limit: float, sure_after: float = _SURE_AFTER) -> Standstill | None:
    """Return the ranks that wait and that nobody will wake, None if there are none.

    Args:
        scratch: the directory of the rehearsal.
        limit: seconds; a rank that waits longer counts as hanging, whoever it waits for.
        sure_after: seconds for which all of a circle have to wait.

    """
    waits = [wait for path in scratch.glob("wait.*.json") if (wait := _read(path)) is not None]
    waits = _identified([wait for wait in waits if _lives(wait.who.pid)])
    sure = [wait for wait in _stuck(waits) if wait.seconds >= min(sure_after, limit)]
    is_late = any(wait.seconds >= limit for wait in waits)
    hanging = _stuck(sure) or [wait for wait in waits if is_late and wait.seconds >= limit - min(_MOMENT, limit / 2)]
    if not hanging:
        return None
    calls = _told(hanging, waits)
    pids = frozenset(each.pid for wait in waits for each in wait.members if each.pid)
    return Standstill(calls[:_MOST_LINES], max(0, len(calls) - _MOST_LINES), pids)


def find_agreement(follower: Follower, limit: float) -> Standstill | None:
    """Return who waits in an agreement of tracehook for longer than `limit` seconds: NCCL knows nothing of that.

    Their logs say so. `follower` reads these, and has just looked.
    """
    now, living = time.monotonic_ns(), {}
    for process in follower.processes.values():
        if not process.summary.ended and _lives(process.summary.pid):
            living[process.name] = process
    calls = []
    for hang in follower.hangs if any(process.agreeing for process in living.values()) else ():
        since = [ns for name in hang.waiting if name in living for ns in living[name].agreeing.values()]
        if not hang.call.endswith(AGREEMENT) or not since or now - min(since) < limit * _SECOND:
            continue
        verb, seconds = "waits" if len(hang.waiting) == 1 else "wait", (now - min(since)) / _SECOND
        told = f"{', '.join(hang.waiting)} {verb} in {hang.call} of {hang.group} for {seconds:.0f} s"
        ranks = [living[name].summary.rank for name in (*hang.missing, *hang.waiting) if name in living]
        known = tuple(rank for rank in ranks if rank is not None)
        calls.append(StuckCall(f"{told}; {', '.join(hang.missing)} did not come", "", known, min(since)))
    pids = frozenset(process.summary.pid for process in living.values())
    return Standstill(calls[:_MOST_LINES], max(0, len(calls) - _MOST_LINES), pids) if calls else None


def is_of(scratch: Path, pid: int) -> bool:
    """Return whether a process is a rank of this rehearsal: it has a file of `scratch` mapped, where ranks meet.

    A number may by now belong to another process.
    """
    try:
        return f"{scratch}/" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _read(path: Path) -> LongWait | None:
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        return LongWait(
            RankId(told["rank"], told["pid"]),
            told["call"],
            told["communicator"],
            tuple(RankId(*member) for member in told["members"]),
            tuple(dict.fromkeys(RankId(*member) for member in told["missing"])),  # a send and a receive of one
            time.monotonic() - told["since_ns"] / _SECOND,
            told["key"],
            told["group"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the wait has just ended


def _identified(waits: Sequence[LongWait]) -> list[LongWait]:
    """Return the waits with the processes of ranks that one of them knows and another does not."""
    known = {each.rank: each for wait in waits for each in (wait.who, *wait.members) if each.pid and each.rank >= 0}

    def found(ranks: Sequence[RankId]) -> tuple[RankId, ...]:
        return tuple(each if each.pid else known.get(each.rank, each) for each in ranks)

    return [replace(wait, members=found(wait.members), missing=found(wait.missing)) for wait in waits]


def _lives(pid: int) -> bool:
    """Whether a process lives; one that nobody knows (0) may."""
    return not pid or _state(pid) not in ("Z", "X")


def _state(pid: int) -> str:
    """Return the letter that the kernel has for the state of a process: T, somebody stopped it; X, it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def _stuck(waits: Sequence[LongWait]) -> list[LongWait]:
    """Return the waits that wait for a rank which is gone or stuck: the others are taken away, again and again."""
    left, before = list(waits), -1
    while len(left) != before:
        before = len(left)
        pids = {wait.who.pid for wait in left}
        left = [
            wait for wait in left if any(missing.pid in pids or not _lives(missing.pid) for missing in wait.missing)
        ]
    return left


def _suspects(waits: Sequence[LongWait]) -> set[int]:
    """Return the processes at the ends of the chains; of a circle those without which the others would go on."""
    waiting: dict[int, list[list[int]]] = defaultdict(list)
    for wait in waits:
        waiting[wait.who.pid].append([each.pid for each in wait.missing])
    found = [(breaking(end, waiting) if len(end) > 1 else []) or end for end in ends(waiting)]
    return {pid for each in found for pid in each}


def _told(hanging: Sequence[LongWait], waits: Sequence[LongWait]) -> list[StuckCall]:
    """Return the calls in which ranks hang; those first whose missing ranks wait nowhere."""
    by_pid: Mapping[int, list[LongWait]] = defaultdict(list)
    for wait in waits:
        by_pid[wait.who.pid].append(wait)
    calls: dict[tuple[str, str, tuple[RankId, ...]], list[LongWait]] = defaultdict(list)
    for wait in hanging:
        # Messages of several pairs of ranks have the same number.
        calls[wait.communicator, wait.call, wait.missing if "(message " in wait.call else ()].append(wait)
    suspects = _suspects(hanging)

    def consequence(same: Sequence[LongWait]) -> tuple[bool, bool, bool, int, int, float]:
        # Of calls whose missing ranks all wait elsewhere, one for a suspect says most: first one in which a suspect
        # waits, of those the one of the smallest group, and then that with the fewest missing.
        is_led = all(by_pid[missing.pid] for missing in same[0].missing)
        for_suspect = any(missing.pid in suspects for missing in same[0].missing)
        of_suspect = any(wait.who.pid in suspects for wait in same)
        return is_led, not for_suspect, not of_suspect, len(same[0].members), len(same[0].missing), -same[0].seconds

    return [_stuck_call(same, by_pid) for same in sorted(calls.values(), key=consequence)]


def _stuck_call(same: Sequence[LongWait], by_pid: Mapping[int, Sequence[LongWait]]) -> StuckCall:
    longest = max(same, key=lambda wait: wait.seconds)
    missing, waiting = [each.rank for each in longest.missing], sorted(wait.who.rank for wait in same)
    is_of_few = len(missing) > len(waiting) and not any(_lives(each.pid) for each in longest.missing)
    ranks = waiting + missing if is_of_few else missing + waiting  # of ranks that ended, most are right
    if any(each.rank < 0 and not each.pid for each in longest.missing):
        ranks = missing  # those that wait are no substitute for one of which only its place is known
    since_ns = time.monotonic_ns() - int(longest.seconds * _SECOND)
    known = tuple(rank for rank in dict.fromkeys(ranks) if rank >= 0)
    return StuckCall(_sentence(same, by_pid), longest.key, known, since_ns)


def _sentence(same: Sequence[LongWait], by_pid: Mapping[int, Sequence[LongWait]]) -> str:
    first = max(same, key=lambda wait: wait.seconds)
    members = ", ".join(member.number for member in first.members)
    who, verb = _names([wait.who for wait in same]), "waits" if len(same) == 1 else "wait"
    # The emulation calls one missing who came to the same call with something that does not fit.
    here = Counter(wait.who.pid for wait in same)
    absent = [_doing(rank, by_pid[rank.pid]) for rank in first.missing if rank.pid not in here]
    ranks_of = Counter(member.pid for member in first.members)
    if any(ranks_of[rank.pid] > here[rank.pid] > 0 for rank in first.missing):  # its ranks are threads
        absent.append("another rank of the same process did not come")
    missing = "; ".join(absent) or "all came, and none goes on"
    group = f", group {first.group}" if first.group else ""
    return (
        f"{who} {verb} in {first.call} of {first.where}{group} (ranks {members}) for {first.seconds:.0f} s; {missing}"
    )


def _doing(missing: RankId, its: Sequence[LongWait]) -> str:
    if not _lives(missing.pid):
        return f"{missing.name} has ended"
    if not missing.pid:
        return f"{missing.name} did not come"
    if not its:
        does = "somebody stopped it (SIGSTOP)" if _state(missing.pid) == "T" else OUTSIDE
        return f"{missing.name} did not come, and waits in no other call: {does}"
    elsewhere = "; ".join(f"{wait.call} of {wait.where}" for wait in its)
    return f"{missing.name} did not come: it waits in {elsewhere} for {_names(its[0].missing)}"


def _names(ranks: Sequence[RankId]) -> str:
    ordered = sorted(ranks, key=lambda each: (each.rank, each.pid))
    if len(ordered) == 1 or any(each.rank < 0 for each in ordered):
        return ", ".join(each.name for each in ordered)
    return "ranks " + ", ".join(str(each.rank) for each in ordered)
