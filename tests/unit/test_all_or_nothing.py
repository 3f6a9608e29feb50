"""A communicator holds every live segment or none: one refused registration undoes the others."""

import pytest

X = 1
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
