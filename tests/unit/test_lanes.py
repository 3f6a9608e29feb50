"""Overlapping intervals in lanes, so that the slices of a track nest."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tracehook.views.timeline import Lanes, NestingLanes

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1])))


def _placed(kind, intervals):
    numbers = itertools.count()
    lanes = kind(lambda: next(numbers))
    placed = [(lanes.place(*interval), interval) for interval in intervals]
    return {lane: [one for number, one in placed if number == lane] for lane, _ in placed}


@given(INTERVALS)
def test_lifetimes_in_a_lane_are_apart(intervals):
    """In a lane, each interval begins when the one before it has ended; there are no more lanes than live at once."""
    lanes = _placed(Lanes, sorted(intervals))
    for members in lanes.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(members))
    at_once = max((sum(a <= t < b for a, b in intervals) for t in range(45)), default=0)
    empty = sum(a == b for a, b in intervals)
    assert at_once <= len(lanes) <= at_once + empty


@given(INTERVALS)
def test_calls_in_a_lane_nest(intervals):
    """In a lane, two intervals are apart, or one lies inside the other."""
    for members in _placed(NestingLanes, sorted(intervals, key=lambda one: (one[0], -one[1]))).values():
        for (a, b), (c, d) in itertools.combinations(members, 2):
            assert b <= c or d <= b or a == c


def test_a_free_lane_is_used_again():
    """The first lane that is free takes the next interval, so that few are needed."""
    assert _placed(Lanes, [(0, 5), (1, 9), (5, 6), (6, 7)]) == {0: [(0, 5), (5, 6), (6, 7)], 1: [(1, 9)]}
