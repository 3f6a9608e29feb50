"""Counts of the events of a process by kind, for its metrics."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tracehook.log import records
from tracehook.log.tables import EVENTS

_TIMEOUT = EVENTS.index("agreement.timeout")


class Missed(NamedTuple):
    """A rank that missed an agreement."""

    comm: str
    rank: int  # in the communicator


class EventCounts:
    """Counts events. The log's thread alone calls :meth:`take`; the other methods may be called from any thread.

    The work is done for each batch and not for each event, because it lengthens the way of every event to the log.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._nanoseconds = [0] * len(EVENTS)
        self._failures: Counter[int] = Counter()
        self._missed: Counter[Missed] = Counter()
        self._timeouts = 0
        self._last_timeout = (0, 0, 0)

    def take(self, data: bytes) -> None:
        """Count whole, consecutive records of the ring."""
        kinds = records.column(data, "kind")
        new = Counter(kinds)
        if max(new, default=0) >= len(self._nanoseconds):  # of a native core that is newer than these tables
            return
        self._counts.update(new)
        spent = self._nanoseconds
        for kind, duration in zip(kinds, records.column(data, "duration_ns"), strict=True):
            spent[kind] += duration
        results = records.column(data, "result")
        if any(results):
            self._failures.update(kind for kind, result in zip(kinds, results, strict=True) if result)
        if _TIMEOUT in new:
            self._take_timeouts(data)

    def take_summed(self, segments: int, registrations: int, ranges: int) -> None:
        """Count segments that came and went, their registrations, and ranges, of which there are no records."""
        for names, count in (
            (("segment.alloc", "segment.free"), segments),
            (("register.local", "deregister.local"), registrations),
            (("range.map", "range.unmap"), ranges),
        ):
            self._counts.update({EVENTS.index(name): count for name in names})

    def _take_timeouts(self, data: bytes) -> None:
        """Tell agreements and ranks apart: each rank that missed one has an event of its own, with the same numbers."""
        for record in records.unpack(data):
            if record.kind != _TIMEOUT:
                continue
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
