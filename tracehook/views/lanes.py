"""Intervals that overlap, laid out in lanes: on one track of a trace, slices have to nest."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Lanes:
    """Gives each interval the first lane in which nothing else lies at that time.

    Intervals come in the order of their start. `new` makes a lane and returns what stands for it.
    """

    def __init__(self, new: Callable[[], int]) -> None:
        self._new = new
        self._lanes: list[int] = []
        self._free: list[int] = []  # a heap of places in _lanes
        self._busy: list[tuple[int, int]] = []  # a heap of (end, place)

    def place(self, start: int, end: int) -> int:
        """Return the lane for the interval from `start` to `end`."""
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            place = heapq.heappop(self._free)
        else:
            place = len(self._lanes)
            self._lanes.append(self._new())
        heapq.heappush(self._busy, (end, place))
        return self._lanes[place]


class NestingLanes:
    """Like :class:`Lanes`, but an interval may lie inside another one in its lane: calls do, lifetimes do not.

    Intervals come in the order of their start, and of two that start together the longer one first.
    """

    def __init__(self, new: Callable[[], int]) -> None:
        self._new = new
        self._lanes: list[
            tuple[int, list[int]]
        ] = []  # what stands for it, and the ends of what is open, the innermost last

    def place(self, start: int, end: int) -> int:
        """Return the lane for the interval from `start` to `end`."""
        for lane, ends in self._lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        lane = self._new()
        self._lanes.append((lane, [end]))
        return lane
