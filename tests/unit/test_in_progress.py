"""Since when a registration is in NCCL, as ``status()`` and the metrics say it."""

import time

ADDRESS, SIZE, COMMUNICATOR = 0x7F0000000000, 1 << 20, 0xC0


def test_a_registration_that_is_in_the_library_has_a_beginning(harness, background, until):
    """Whoever looks meanwhile sees when it began; afterwards nothing is in progress."""
    harness.create(COMMUNICATOR)
    (row,) = harness.communicators()
    assert (row["segments_since_ns"], row["windows_since_ns"]) == (0, 0)
    harness.set_delay_us(500_000)
    before = time.monotonic_ns()
    call = background(harness.alloc, 0, ADDRESS, SIZE)
    until(lambda: harness.communicators()[0]["segments_since_ns"] != 0)
    since = harness.communicators()[0]["segments_since_ns"]
    assert before <= since <= time.monotonic_ns()
    assert not call.returned(0)
    call.result()
    (row,) = harness.communicators()
    assert (row["segments_since_ns"], row["held"]) == (0, 1)
