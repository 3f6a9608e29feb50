"""The ring: bounded, in order, and honest about what it lost."""

import pytest

from tracehook import _testing
from tracehook.log import records

CAPACITY = 16


def _records_of(core):
    return list(records.unpack(core.peek(1 << 16)))


@pytest.fixture
def small():
    """Return a registrar whose ring holds few events."""
    return _testing.Harness(ring_capacity=CAPACITY)


def _overfill(harness, segments):
    for number in range(segments):
        harness.alloc(0, 0x10000 * (number + 1), 4096)


def test_a_full_ring_keeps_the_oldest(small):
    """What led to a fault is worth more than what followed it; the rest is counted, and a gap in the numbers."""
    _overfill(small, CAPACITY + 5)
    assert [record.members()["segment"] for record in _records_of(small)] == list(range(1, CAPACITY + 1))
    assert small.dropped == 5
    small.mark_drained(2)
    small.alloc(1, 0x10000, 4096)
    assert [record.seq for record in _records_of(small)] == [*range(3, CAPACITY + 1), CAPACITY + 6]


def test_events_stay_until_marked(small):
    """Looking does not take; marking takes from the old end."""
    _overfill(small, 6)
    assert _records_of(small) == _records_of(small)
    assert [record.seq for record in records.unpack(small.peek(2))] == [1, 2], "a small buffer gets whole records"
    assert small.peek(0) == b""
    small.mark_drained(4)
    assert [record.seq for record in _records_of(small)] == [5, 6]
    small.mark_drained(2)
    assert small.peek(100) == b""


def test_the_order_survives_going_round(small):
    """Many times round the ring, every event comes out once and in order."""
    seen = []
    for turn in range(10 * CAPACITY):
        small.alloc(0, 0x10000 * (turn + 1), 4096)
        if turn % 11 == 10:
            seen += [record.seq for record in _records_of(small)]
            small.mark_drained(len(_records_of(small)))
    seen += [record.seq for record in _records_of(small)]
    assert seen == list(range(1, 10 * CAPACITY + 1))
    assert small.dropped == 0


def test_time_never_runs_backwards_within_a_thread(small):
    """Events of one thread carry its kernel id and times that do not decrease."""
    _overfill(small, CAPACITY)
    records = _records_of(small)
    assert [record.t_ns for record in records] == sorted(record.t_ns for record in records)
    assert len({record.thread for record in records}) == 1
