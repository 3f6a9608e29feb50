"""Segments that came and went while the log could not keep up: one line stands for them, if nothing was wrong."""

import pytest

from tracehook import _testing
from tracehook.log.records import unpack

MIB = 1 << 20


@pytest.fixture
def crowded(harness: _testing.Harness) -> _testing.Harness:
    """Return a registrar with a communicator whose events are in the log already."""
    harness.create(1)
    harness.mark_drained(len(list(unpack(harness.peek(100)))))
    return harness


def summary_of(crowded: _testing.Harness) -> tuple[bytes, int, int, tuple[int, int, int, int, int]]:
    """Return the events that stay, how many were read, the last one's number, and what the others come to."""
    found = crowded.peek_summed(1000, 1)
    assert found is not None
    return found


def test_what_came_and_went_is_summed(crowded: _testing.Harness) -> None:
    """Its events are taken out, and counted; what lives keeps its events, in their order."""
    crowded.alloc(0, 1 << 30, MIB)
    for number in range(1, 11):
        crowded.alloc(0, number << 21, 2 * MIB)
        crowded.free(0, number << 21, 2 * MIB)
    data, read, last, summed = summary_of(crowded)
    kept = list(unpack(data))
    assert summed == (40, 10, 20 * MIB, 10, 0)
    assert read == 2 + 40
    assert [record.members()["segment"] for record in kept] == [1, 1]
    assert last == kept[-1].seq + 40


def _segment(crowded: _testing.Harness) -> None:
    crowded.alloc(0, 1 << 21, MIB)
    crowded.mark_drained(2)
    crowded.free(0, 1 << 21, MIB)


def _range(crowded: _testing.Harness) -> None:
    crowded.map(0, 1 << 21, 2 * MIB)
    crowded.mark_drained(1)
    crowded.unmap(0, 1 << 21, 2 * MIB)


def _refused(crowded: _testing.Harness) -> None:
    crowded.fail_after(1, 0)
    crowded.alloc(0, 1 << 21, MIB)
    crowded.free(0, 1 << 21, MIB)


@pytest.mark.parametrize(("live", "kept"), [(_segment, 2), (_range, 1), (_refused, None)])
def test_a_life_of_which_somebody_will_want_to_read_stays(crowded, live, kept):
    """One whose other half is in the log already, or the audit would take it for wrong; and one with a refused call."""
    live(crowded)
    data, read, _, summed = summary_of(crowded)
    assert summed == (0, 0, 0, 0, 0)
    assert len(list(unpack(data))) == read == (kept or read)


def test_ranges_that_came_and_went_are_summed(crowded: _testing.Harness) -> None:
    """Each pair of a mapping and its end in one piece counts; what is mapped still, or ended in pieces, stays."""
    for _ in range(5):
        crowded.map(0, 1 << 21, 2 * MIB)
        crowded.unmap(0, 1 << 21, 2 * MIB)
    crowded.map(0, 1 << 21, 2 * MIB)
    crowded.map(0, 1 << 22, 2 * MIB)
    crowded.unmap(0, 1 << 22, MIB)
    data, read, _, summed = summary_of(crowded)
    assert summed == (10, 0, 0, 0, 5)
    assert read == 13
    assert len(list(unpack(data))) == 3


def test_few_events_are_not_summed(crowded: _testing.Harness) -> None:
    """A log that keeps up has a line for each."""
    crowded.alloc(0, 1 << 21, MIB)
    crowded.free(0, 1 << 21, MIB)
    assert crowded.peek_summed(100, 50) is None
