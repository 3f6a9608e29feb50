"""Logs that are still being written: what is new in a directory since the last look.

Reads files only, and looks for no process. What a process has not written yet is seen in the header of its ring, as a
number. Only if ranks hang, the watch asks the processes that wait in no call for their stacks (:mod:`live_waits`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from tracehook.audit.live_process import Process
from tracehook.audit.live_waits import Hang, LiveWaits, Running
from tracehook.log.growing import GrowingDirectory
from tracehook.log.jobs import choose, jobs_of
from tracehook.log.lines import LogError

_SHARE_OF_LOOKING: Final = 0.4  # of the time of a look


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
        self.host_count = 0
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
        self._rounds = 0

    @property
    def skipped(self) -> dict[str, str]:
        """The files that are no logs of ours, and why."""
        return self._logs.skipped

    @property
    def behind(self) -> int:
        """Bytes that the last look found and did not come to read."""
        return self._logs.behind

    @property
    def is_whole(self) -> bool:
        """Whether the last look came to the last log, and has read what is in them."""
        return self._logs.is_round and not self.behind

    @property
    def has_caught_up(self) -> bool:
        """Whether all that was there was read once."""
        return self._rounds > 0

    @property
    def hangs(self) -> list[Hang]:
        """Who waits for whom, in which call."""
        return self._waits.hangs

    @property
    def all_ended(self) -> bool:
        """Whether there are processes, and each wrote its last line or was killed on this host, launchers too."""
        return bool(self.processes) and all(process.is_over(self.now) for process in self._meant)

    def look(self, seconds: float = math.inf) -> None:
        """Read what is new, each file in turn; after `seconds`, leave the rest to the next look.

        Of these, looking for what is new takes less than a half: of very many logs each look takes some in turn.

        A directory that is not there holds no logs. Raises OSError if it cannot be read, or is none.
        """
        self.now = self._clock()
        seen: dict[str, None] = {}
        if self.has_caught_up or not (self._logs.is_round and self.behind):  # else what is there is read first
            seen = dict.fromkeys(self._logs.look(lambda: self._clock() - self.now < _SHARE_OF_LOOKING * seconds))
        self._drop_replaced()
        while (found := self._logs.read_next()) is not None:
            if self._take(*found):
                seen[found[0]] = None
            if self._clock() - self.now >= seconds:
                break
        self._drop_replaced()
        for name in seen:
            if (process := self._everybody.get(name)) is not None:
                self._see(name, process)
        self._rounds += self.is_whole
        self._choose()
        if self.has_caught_up:
            self._waits.look(self._running, self._logs, self.now)

    def _see(self, name: str, process: Process) -> None:
        found = None if process.summary.ended else self._logs.ring_heads(name)
        process.see_ring(found and found[0], self.now)
        self._waits.see(name, found[1] if found else [])
        if not self._logs.is_unfinished(name):  # else the rates would be those of our reading
            process.sample(self.now)

    def _running(self) -> dict[str, Running]:
        return {name: process.running(self.now) for name, process in self.processes.items()}

    def _choose(self) -> None:
        """Keep the processes that are meant. Telling jobs apart takes as long as a look, so it waits for news."""
        known = [
            (process, process.participation.used_device, len(process.participation.communicators))
            for process in self._everybody.values()
        ]
        if known == self._known:
            return
        self._known = known
        self.left_out = self.missing = ""
        try:
            choice = choose(self.directory, jobs_of(self._everybody.values()), self._job)
        except LogError as problem:
            self._meant, self.missing = (), str(problem)
        else:
            job = choice.job if choice else None
            self.left_out = choice.left_out if choice else ""
            self._meant = (*job.workers, *job.launchers) if job else tuple(self._everybody.values())
            if job is not None and not self._show_all:
                self._show(job.workers)
                return
        self._show(self._meant)

    def _show(self, processes: Collection[Process]) -> None:
        shown = set(map(id, processes))
        self.processes = {name: process for name, process in self._everybody.items() if id(process) in shown}
        self.host_count = len({process.host for process in self.processes.values()})

    def _take(self, name: str, lines: list[bytes | None]) -> bool:
        """Count these lines; return whether their process was not known."""
        tail = self._logs.tails.get(name)
        if tail is None or tail.begin is None:
            return False
        is_new = name not in self._everybody
        if is_new:
            self._everybody[name] = Process(tail.begin, self.now, max(0.0, time.time() - tail.changed))
        if lines:
            self._everybody[name].take(lines, self.now)
        return is_new

    def _drop_replaced(self) -> None:
        """Drop the processes whose logs are gone, or are those of other processes by now."""
        tails = self._logs.tails
        self._everybody = {
            name: process
            for name, process in self._everybody.items()
            if name in tails and tails[name].begin is process.begin
        }
