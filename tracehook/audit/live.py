"""Logs that are still being written: what is new in a directory since the last look.

Reads files only: a process is never asked, nor looked for. What it has not written yet is seen in the header of its
ring, as a number.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tracehook.audit.group import NAMED, NamedGroup, group_in
from tracehook.audit.live_waits import Hang, LiveWaits, Running
from tracehook.audit.summary import Summary
from tracehook.log.calls import Calls, parse
from tracehook.log.file import rank_of
from tracehook.log.growing import GrowingDirectory
from tracehook.log.jobs import choose, jobs_of, left_out
from tracehook.log.lines import LogError, parse_lines, whole_number
from tracehook.log.participation import Participation
from tracehook.log.ring import RingHeader

QUIET_AFTER: Final = 5.0  # seconds without anything new after which a process is quiet
_WINDOW: Final = 5.0  # seconds over which rates are taken


class State(StrEnum):
    """What the files tell of a process."""

    RUNNING = "running"
    QUIET = "quiet"  # nothing new: it computes, waits or hangs
    STUCK = "stuck"  # events wait in its ring and are not written: its log cannot be
    SILENT = "silent"  # its journal does not look at the ring any more: it was killed or stopped, or keeps the GIL
    ENDED = "ended"
    NO_END = "no trace.end"  # quiet, and its ring is gone


class Process:
    """One process, as far as its log was read. `quiet` are the seconds since it was last written."""

    def __init__(self, begin: dict[str, Any], now: float, quiet: float) -> None:
        self.begin = begin
        self.participation = Participation()
        self.summary = Summary(rank_of(begin), whole_number(begin.get("pid")) or 0)
        self.bytes = 0
        self.foreign = 0  # lines that are no events
        self.dropped = 0
        self.latest: dict[str, Any] | None = None  # the event that somebody should look at
        self.groups: dict[str, NamedGroup] = {}  # by the key of their communicator
        self._called: dict[str, Calls] = {}  # communicators that ended
        self._lines = 0
        self._news_at = now - quiet
        self._drained_at = self._looked_at = now
        self._ring: RingHeader | None = None
        self._samples: deque[tuple[float, int, int]] = deque()

    @property
    def alerts(self) -> int:
        """Warnings, problems and calls that NCCL refused."""
        return self.summary.warnings + self.summary.failures

    @property
    def waiting(self) -> int:
        """Events in the ring that are not in the file."""
        return self._ring.pushed - self._ring.drained if self._ring else 0

    def take(self, lines: Iterable[bytes | None], now: float) -> None:
        """Count what these lines say."""
        for _, event in parse_lines(lines):
            if event is not None:
                self._count(event)
            else:
                self.foreign += 1
        if self._samples:  # else these are lines of before, and the file says when it was last written
            self._news_at = now

    def _count(self, event: dict[str, Any]) -> None:
        name, before = event["event"], self.alerts
        self.summary.count(event)
        self.participation.add(event)
        if self.alerts > before:
            self.latest = event
        self._lines += "seq" in event
        if name.startswith("segment."):
            total = whole_number(event.get("total"))
            self.bytes = self.bytes if total is None else total
        elif name == NAMED:
            self.groups[str(event.get("comm"))] = group_in(event)
        elif name == "communicator.calls" and (calls := parse(event)) is not None:
            self._called[calls.comm] = calls
        elif name == "log.dropped":
            self.dropped += whole_number(event.get("count")) or 0
        elif name == "trace.end":
            self.summary.ended = True
            self.dropped = max(self.dropped, whole_number(event.get("dropped")) or 0)

    def see_ring(self, header: RingHeader | None, now: float) -> None:
        """Note what waits in the ring; None: there is no ring."""
        before, self._ring = self._ring, header
        if header is None:
            return
        self.dropped = max(self.dropped, header.dropped)
        if before is None and header.looked_ns:
            # By the wall clock, and so only until we see it look: another host's clock may differ.
            self._looked_at = now - max(0.0, time.time() - (header.epoch_ns + header.looked_ns) / 1e9)
        elif before is None or header.looked_ns != before.looked_ns:
            self._looked_at = now
        if before is not None and header.pushed != before.pushed:
            self._news_at = now
        if before is not None and (header.drained != before.drained or not self.waiting):
            self._drained_at = now

    def sample(self, now: float) -> None:
        """Remember the counts of now, for the rates."""
        events = max(self._lines, self._ring.pushed if self._ring else 0)
        self._samples.append((now, events, self.summary.local.made + self.summary.windows.made))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW:
            self._samples.popleft()

    def rates(self) -> tuple[float, float] | None:
        """Return events and registrations per second over the last seconds; None before the second look."""
        if len(self._samples) < 2:
            return None
        (since, events, made), (until, events_now, made_now) = self._samples[0], self._samples[-1]
        seconds = max(until - since, 1e-9)
        return max(0, events_now - events) / seconds, (made_now - made) / seconds

    def state(self, now: float) -> tuple[State, float]:
        """Return the state, and the seconds since when it is so."""
        quiet = max(0.0, now - self._news_at)
        if self.summary.ended:
            return State.ENDED, quiet
        if self._ring and self._ring.looked_ns and now - self._looked_at >= QUIET_AFTER:
            return State.SILENT, now - self._looked_at
        if self.waiting and now - self._drained_at >= QUIET_AFTER:
            return State.STUCK, now - self._drained_at
        if quiet < QUIET_AFTER:
            return State.RUNNING, quiet
        return (State.QUIET if self._ring else State.NO_END), quiet

    def running(self, now: float) -> Running:
        """Return what is to be known of it when its slots of calls are looked at."""
        lives = self.state(now)[0] in (State.RUNNING, State.QUIET, State.STUCK) and self._ring is not None
        since_ns = int((now - self._looked_at) * 1e9)
        clock = self._ring.looked_ns + since_ns if lives and self._ring and self._ring.looked_ns else None
        names = {comm: group.label for comm, group in self.groups.items()}
        summary = self.summary
        return Running(summary.rank, summary.pid, summary.ended, clock, self._called, names)

    def time_of(self, event: dict[str, Any]) -> float | None:
        """Return when an event happened, in seconds since 1970; None if the log does not say."""
        begin_ns, event_ns = whole_number(self.begin.get("t_ns")), whole_number(event.get("t_ns"))
        try:
            begin = datetime.fromisoformat(self.begin["time"]).timestamp()
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return None if begin_ns is None or event_ns is None else begin + (event_ns - begin_ns) / 1e9


class Follower:
    """The processes of one job whose logs are in a directory, as of the last :meth:`look`, by the name of the log.

    The job is the one called `job`, or the one that began last. `show_all`: with its launchers. `left_out` says which
    jobs are not shown, `missing` that there is no job of that id.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
        job: str | None = None,
        show_all: bool = False,
    ) -> None:
        self.directory = directory
        self.processes: dict[str, Process] = {}
        self.left_out = ""
        self.missing = ""
        self._job = job
        self._show_all = show_all
        self._everybody: dict[str, Process] = {}
        self._known: list[tuple[Process, bool, int]] = []  # what the choice was made of
        self._meant: Collection[Process] = ()  # those of the job, with its launchers
        self.now = clock()
        self._clock = clock
        self._logs = GrowingDirectory(directory)
        self._waits = LiveWaits()

    @property
    def skipped(self) -> dict[str, str]:
        """The files that are no logs of ours, and why."""
        return self._logs.skipped

    @property
    def behind(self) -> int:
        """Bytes that the last look found and did not come to read."""
        return self._logs.behind

    @property
    def hangs(self) -> list[Hang]:
        """Who waits for whom, in which call."""
        return self._waits.hangs

    @property
    def all_ended(self) -> bool:
        """Whether there are processes, and each wrote its last line, launchers too."""
        return bool(self.processes) and all(process.summary.ended for process in self._meant)

    def look(self, seconds: float = math.inf) -> None:
        """Read what is new, each file in turn; after `seconds`, leave the rest to the next look.

        A directory that is not there holds no logs. Raises OSError if it cannot be read, or is none.
        """
        self.now = self._clock()
        self._logs.look()
        self._drop_replaced()
        while (found := self._logs.read_next()) is not None:
            self._take(*found)
            if self._clock() - self.now >= seconds:
                break
        self._drop_replaced()
        behind = self._logs.unfinished
        for name, process in self._everybody.items():
            process.see_ring(None if process.summary.ended else self._logs.ring_header(name), self.now)
            if name not in behind:  # else the rates would be those of our reading
                process.sample(self.now)
        self._choose()
        running = {name: process.running(self.now) for name, process in self.processes.items()}
        self._waits.look(running, self._logs.ring_slots, self.now)

    def _choose(self) -> None:
        """Keep the processes that are meant. Telling jobs apart takes as long as a look, so it waits for news."""
        known = [
            (process, process.participation.used_device, len(process.participation.communicators))
            for process in self._everybody.values()
        ]
        if known == self._known:
            return
        self._known = known
        jobs = jobs_of(self._everybody.values())
        self.left_out = left_out(jobs) if self._job is None else ""
        self.missing = ""
        try:
            job = choose(self.directory, jobs, self._job)
        except LogError as problem:
            self._meant, self.missing = (), str(problem)
        else:
            self._meant = (*job.workers, *job.launchers) if job else tuple(self._everybody.values())
            if job is not None and not self._show_all:
                self._show(job.workers)
                return
        self._show(self._meant)

    def _show(self, processes: Collection[Process]) -> None:
        shown = set(map(id, processes))
        self.processes = {name: process for name, process in self._everybody.items() if id(process) in shown}

    def _take(self, name: str, lines: list[bytes | None]) -> None:
        tail = self._logs.tails.get(name)
        if tail is None or tail.begin is None:
            return
        if name not in self._everybody:
            self._everybody[name] = Process(tail.begin, self.now, max(0.0, time.time() - tail.changed))
        if lines:
            self._everybody[name].take(lines, self.now)

    def _drop_replaced(self) -> None:
        """Drop the processes whose logs are gone, or are those of other processes by now."""
        tails = self._logs.tails
        self._everybody = {
            name: process
            for name, process in self._everybody.items()
            if name in tails and tails[name].begin is process.begin
        }
