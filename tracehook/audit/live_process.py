"""One process of a job that runs: what its log and its ring tell of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tracehook.audit.alive import lives
from tracehook.audit.called import name_of
from tracehook.audit.group import KNOWN, NAMED, NamedGroup, group_in, known_in
from tracehook.audit.live_waits import Running
from tracehook.audit.summary import Summary
from tracehook.log.calls import Calls, parse
from tracehook.log.file import Participation, rank_of
from tracehook.log.folders import own_host
from tracehook.log.lines import parse_lines, whole_number
from tracehook.log.ring import RingHeader

QUIET_AFTER: Final = 5.0  # seconds without anything new after which a process is quiet
_WINDOW: Final = 5.0  # seconds over which rates are taken


class State(StrEnum):
    """What the files tell of a process."""

    RUNNING = "running"
    QUIET = "quiet"  # nothing new: it computes, waits or hangs
    STUCK = "stuck"  # events wait in its ring and are not written: its log cannot be
    SILENT = "silent"  # its journal does not look at the ring any more: it was killed or stopped, or keeps the GIL
    GONE = "gone"  # and there is no such process on this host any more: it was killed, or called os._exit
    ENDED = "ended"
    NO_END = "no trace.end"  # quiet, and its ring is gone


class Process:
    """One process, as far as its log was read. `quiet` are the seconds since it was last written.

    Of very many processes not each is looked at every time: what is told of one is what the last look at it showed.
    """

    def __init__(self, begin: dict[str, Any], now: float, quiet: float) -> None:
        self.begin = begin
        named = begin.get("ring")  # if it is not beside the log
        self._has_ring_elsewhere = isinstance(named, str) and begin.get("host") != own_host()
        self.host = str(begin.get("host") or "?")  # "?": its log does not say
        self.participation = Participation()
        self.summary = Summary(rank_of(begin), whole_number(begin.get("pid")) or 0)
        self.bytes = 0
        self.foreign = 0  # lines that are no events
        self.dropped = 0
        self.latest: dict[str, Any] | None = None  # the event that somebody should look at
        self.groups: dict[str, NamedGroup] = {}  # by the key of their communicator
        self._called: dict[str, Calls] = {}  # communicators that ended
        self._known_groups: list[tuple[list[int], bool]] = []
        self.agreeing: dict[str, int] = {}  # communicators in whose agreements it waits, and since when by its clock
        self._lines = 0
        self._news_at = now - quiet
        self._drained_at = self._looked_at = now
        self._seen_at = now
        self._ring: RingHeader | None = None
        self._is_gone = False
        self._last_ns: int | None = None
        self._samples: deque[tuple[float, int, int]] = deque()

    @property
    def name(self) -> str:
        """What to call it, as the audit does."""
        return name_of(self.summary.rank, self.summary.pid)

    @property
    def last_ns(self) -> int | None:
        """The time of its last event, on the clock of its first line, once the process has ended."""
        return self._last_ns if self.summary.ended or self._is_gone else None

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
        name, counts = event["event"], self.summary
        before = counts.warnings + counts.failures
        counts.count(event)
        self.participation.add(event)
        self._last_ns = whole_number(event.get("t_ns"))
        if counts.warnings + counts.failures > before:
            self.latest = event
        self._lines += "seq" in event
        if name.startswith("segment."):
            total = whole_number(event.get("total"))
            self.bytes = self.bytes if total is None else total
        elif name == NAMED:
            self.groups[str(event.get("comm"))] = group_in(event)
        elif name == KNOWN:
            self._known_groups.append(known_in(event))
        elif name == "communicator.calls" and (calls := parse(event)) and calls.making is None:
            self._called[calls.comm] = calls
        elif name == "agreement.waits":
            self.agreeing[str(event.get("comm"))] = whole_number(event.get("t_ns")) or 0
        elif name == "agreement.waited":
            self.agreeing.pop(str(event.get("comm")), None)
        elif name == "log.dropped":
            self.dropped += whole_number(event.get("count")) or 0
        elif name == "trace.end":
            self.summary.ended = True
            self.dropped = max(self.dropped, whole_number(event.get("dropped")) or 0)

    def see_ring(self, header: RingHeader | None, now: float) -> None:
        """Note that it was looked at, and what waits in the ring; None: there is no ring."""
        self._seen_at = now
        before, self._ring = self._ring, header
        if header is None:
            return
        self.summary.ended |= header.log_ended == 1
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
        if header.looked_ns and now - self._looked_at >= QUIET_AFTER and self.host == own_host():
            self._is_gone = not lives(self.begin, header.epoch_ns)

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
        seen_at = self._seen_at
        if self.summary.ended:
            return State.ENDED, max(0.0, now - self._news_at)
        if self._ring and self._ring.looked_ns and seen_at - self._looked_at >= QUIET_AFTER:
            return State.GONE if self._is_gone else State.SILENT, now - self._looked_at
        if self.waiting and seen_at - self._drained_at >= QUIET_AFTER:
            return State.STUCK, now - self._drained_at
        quiet = max(0.0, now - self._news_at)
        if seen_at - self._news_at < QUIET_AFTER:
            return State.RUNNING, quiet
        return (State.QUIET if self._ring or self._has_ring_elsewhere else State.NO_END), quiet

    def is_over(self, now: float) -> bool:
        """Whether its log has an end, or its process is gone. The latter can be seen on its own host only."""
        if self.summary.ended:
            return True
        state = self.state(now)[0]
        return state is State.GONE or (
            state is State.NO_END
            and self.host == own_host()
            and not lives(self.begin, self._ring.epoch_ns if self._ring else 0)
        )

    @property
    def numbers(self) -> tuple[int, int, int, int, int, int, int]:
        """Segments, their bytes, communicators, registrations held, alerts, events in the ring and lost ones."""
        counts = self.summary
        return (
            max(0, counts.segments - counts.segments_freed),
            self.bytes,
            max(0, counts.communicators - counts.destroyed - counts.aborted),
            counts.local.left + counts.windows.left,
            self.alerts,
            self.waiting,
            self.dropped,
        )

    def running(self, now: float) -> Running:
        """Return what is to be known of it when its slots of calls are looked at."""
        lives = self.state(now)[0] in (State.RUNNING, State.QUIET, State.STUCK) and self._ring is not None
        since_ns = int((now - self._looked_at) * 1e9)
        clock = self._ring.looked_ns + since_ns if lives and self._ring and self._ring.looked_ns else None
        names = {comm: group.label for comm, group in self.groups.items()}
        summary = self.summary
        is_here = self.host == own_host()
        known, agreeing = self._known_groups, frozenset(self.agreeing)
        return Running(summary.rank, summary.pid, summary.ended, clock, self._called, names, agreeing, known, is_here)

    def time_of(self, event: dict[str, Any]) -> float | None:
        """Return when an event happened, in seconds since 1970; None if the log does not say."""
        begin_ns, event_ns = whole_number(self.begin.get("t_ns")), whole_number(event.get("t_ns"))
        try:
            begin = datetime.fromisoformat(self.begin["time"]).timestamp()
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return None if begin_ns is None or event_ns is None else begin + (event_ns - begin_ns) / 1e9
