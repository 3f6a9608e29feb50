"""A free returns when no communicator holds the memory any more, whatever else goes on."""

from collections.abc import Iterator

import pytest

from tracehook._testing import Harness

X, Y = 1, 2
SIZE = 4096


@pytest.fixture
def hasty() -> Iterator[Harness]:
    """Return a registrar that waits for 50 ms where a job's waits for seconds."""
    made = Harness(patience_ms=50)
    yield made
    assert made.violations == 0


def test_a_free_undoes_what_a_switch_could_not(hasty, background):
    """Off came while the library was busy, on queued the segment again: it is queued and held, and is undone."""
    hasty.create(X)
    hasty.alloc(0, 0x10000, SIZE)
    hasty.set_in_progress(X, True)
    hasty.set_registering(False)
    hasty.set_registering(True)
    free = background(hasty.free, 0, 0x10000, SIZE)
    assert not free.returned()
    hasty.set_in_progress(X, False)
    free.result()
    assert hasty.held(X) == []


def test_a_segment_is_not_queued_for_who_was_born_with_it(harness, calls_of, busy_gate, background, until):
    """A free went unseen, a communicator is born while that is made up for: it registers the new segment once."""
    harness.create(X)
    harness.alloc(0, 0x10000, 2 * SIZE)
    with busy_gate(X):
        alloc = background(harness.alloc, 0, 0x10000, SIZE)  # over the other, whose free nobody saw
        until(lambda: (0, 0x10000, 2 * SIZE) not in [(row.device, row.address, row.size) for row in harness.segments()])
        harness.create(Y)
        with busy_gate(Y):
            pass
    alloc.result()
    assert harness.held(Y) == [(0x10000, SIZE)]
    with busy_gate(Y):
        free = background(harness.free, 0, 0x10000, SIZE)
        assert not free.returned()
    free.result()
    assert calls_of(Y) == [("register", 0x10000), ("deregister", 0x10000)]


def test_a_free_does_not_give_up_on_a_busy_library(hasty, background):
    """The memory goes when the event returns, so there is no time after which it returns all the same."""
    hasty.create(X)
    hasty.alloc(0, 0x10000, SIZE)
    hasty.set_in_progress(X, True)
    free = background(hasty.free, 0, 0x10000, SIZE)
    assert not free.returned(0.3)
    hasty.set_in_progress(X, False)
    free.result()


def test_a_busy_library_does_not_keep_others_from_the_gate(hasty, background):
    """A free that waits until the library is ready waits outside: calls pass, and the first that can does its work."""
    hasty.create(X)
    hasty.alloc(0, 0x10000, SIZE)
    hasty.set_in_progress(X, True)
    free = background(hasty.free, 0, 0x10000, SIZE)
    assert not free.returned()
    assert background(hasty.collective, X).result() is True
    hasty.kill(X)
    free.result()
