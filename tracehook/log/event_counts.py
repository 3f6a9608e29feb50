"""Counts of the events of a process by kind, for its metrics."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tracehook.log.records import Record
from tracehook.log.tables import EVENTS

_TIMEOUT = EVENTS.index("agreement.timeout")


class Missed(NamedTuple):
    """A rank that missed an agreement."""

    comm: str
    rank: int  # in the communicator


class EventCounts:
    """Counts events. The log's thread alone calls :meth:`take`; the other methods may be called from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._nanoseconds = [0] * len(EVENTS)
        self._failures: Counter[int] = Counter()
        self._missed: Counter[Missed] = Counter()
        self._timeouts = 0
        self._last_timeout = (0, 0, 0)

    def take(self, record: Record) -> None:
        """Count an event of the ring."""
        kind = record.kind
        if kind >= len(EVENTS):  # of a native core that is newer than these tables
            return
        self._counts[kind] += 1
        self._nanoseconds[kind] += record.duration_ns
        self._failures[kind] += record.result != 0
        if kind == _TIMEOUT:
            self._take_timeout(record)

    def take_summed(self, segments: int, registrations: int, ranges: int) -> None:
        """Count segments that came and went, their registrations, and ranges, of which there are no records."""
        for names, count in (
            (("segment.alloc", "segment.free"), segments),
            (("register.local", "deregister.local"), registrations),
            (("range.map", "range.unmap"), ranges),
        ):
            self._counts.update({EVENTS.index(name): count for name in names})

    def _take_timeout(self, record: Record) -> None:
        """Tell agreements and ranks apart: each rank that missed one has an event of its own, with the same numbers."""
        own = record.members()
        self._missed[Missed(f"{record.comm:016x}", own["missing_rank"])] += 1
        this = (record.comm_id, own["entries"], record.duration_ns)
        if this == self._last_timeout and record.duration_ns:
            self._nanoseconds[_TIMEOUT] -= record.duration_ns
        else:
            self._timeouts += 1
        self._last_timeout = this

    def count(self, event: str) -> int:
        """Return how many events of this name there were."""
        return self._counts[EVENTS.index(event)]

    def failures(self, event: str) -> int:
        """Return how many of the calls that these events tell of had an error."""
        return self._failures[EVENTS.index(event)]

    def seconds(self, event: str) -> float:
        """Return how long all of what they tell of took together."""
        return self._nanoseconds[EVENTS.index(event)] / 1e9

    def timeouts(self) -> int:
        """Return how many agreements some rank missed."""
        return self._timeouts

    def missed(self) -> list[tuple[Missed, int]]:
        """Return how often each rank was missed, the first one first."""
        return list(self._missed.items())
