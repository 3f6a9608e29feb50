"""A communicator holds every live segment or none: one refused registration undoes the others."""

import pytest

X, OTHER = 1, 2
SEGMENTS = (0x10000, 0x20000, 0x30000, 0x40000)
SIZE = 4096


@pytest.mark.parametrize("good", range(len(SEGMENTS)))
def test_a_refused_segment_undoes_the_others(harness, calls_of, events, good):
    """Whichever call fails, those made before it are undone and the communicator is reported as failed."""
    harness.create(X)
    harness.fail_after(X, good)
    for address in SEGMENTS:
        harness.alloc(0, address, SIZE)
    calls = calls_of(X)
    assert calls[: good + 1] == [("register", a) for a in SEGMENTS[:good]] + [("refused", SEGMENTS[good])]
    assert sorted(calls[good + 1 :]) == [("deregister", address) for address in SEGMENTS[:good]]
    (failed,) = events("communicator.failed")
    assert (failed["addr"], failed["error"], failed["registrations"]) == (f"{SEGMENTS[good]:#x}", 1, good)


def test_a_refusal_in_the_first_batch_stops_the_batch(harness, calls_of):
    """A new communicator that refuses its second segment is not asked about the third."""
    for address in SEGMENTS:
        harness.alloc(0, address, SIZE)
    harness.fail_after(X, 1)
    harness.create(X)
    first, second = sorted(SEGMENTS, reverse=True)[:2]
    assert calls_of(X) == [("register", first), ("refused", second), ("deregister", first)]


def test_a_failed_communicator_is_left_alone(harness, calls_of, events):
    """Later segments come and go without a call, collectives run on, and it is reported once."""
    harness.create(X)
    harness.alloc(0, SEGMENTS[0], SIZE)
    harness.fail_after(X, 0)
    harness.alloc(0, SEGMENTS[1], SIZE)
    made = calls_of(X)
    harness.fail_after(X, 1000)
    harness.alloc(0, SEGMENTS[2], SIZE)
    for address in SEGMENTS[:3]:
        harness.free(0, address, SIZE)
    assert harness.collective(X) is True
    assert calls_of(X) == made
    assert len(events("communicator.failed")) == 1


def test_other_communicators_go_on(harness):
    """A refusal by one communicator does not reach another, not even one behind the same gate."""
    harness.create(X)
    harness.create(OTHER, parent=X)
    harness.create(3)
    harness.fail_after(X, 1)
    for address in SEGMENTS:
        harness.alloc(0, address, SIZE)
    assert [len(harness.held(pointer)) for pointer in (X, OTHER, 3)] == [0, 4, 4]
    assert [row["failed"] for row in sorted(harness.communicators(), key=lambda row: row["pointer"])] == [
        True,
        False,
        False,
    ]


def test_a_failed_communicator_ends_like_any_other(harness, calls_of, events):
    """There is nothing left to undo when it is destroyed."""
    harness.create(X)
    harness.fail_after(X, 1)
    for address in SEGMENTS:
        harness.alloc(0, address, SIZE)
    made = calls_of(X)
    harness.retire(X)
    assert calls_of(X) == made
    assert [row["registrations"] for row in events("communicator.retire")] == [0]


def test_the_next_communicator_at_the_pointer_starts_afresh(harness):
    """A failure belongs to a communicator, not to its address."""
    harness.create(X)
    harness.fail_after(X, 0)
    harness.alloc(0, SEGMENTS[0], SIZE)
    harness.kill(X)
    harness.fail_after(X, 1000)
    harness.create(X)
    assert harness.held(X) == [(SEGMENTS[0], SIZE)]


def test_switching_off_and_on_does_not_forget_a_failure(harness, calls_of):
    """A communicator that refused once stays unregistered: other ranks cannot know that it would accept now."""
    harness.create(X)
    harness.fail_after(X, 1)
    for address in SEGMENTS:
        harness.alloc(0, address, SIZE)
    made = calls_of(X)
    harness.fail_after(X, 1000)
    harness.set_registering(False)
    harness.set_registering(True)
    assert calls_of(X) == made
