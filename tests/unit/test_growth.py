"""What must not grow: the queue of a communicator whose gate is busy while segments come and go."""

import gc
import os
from pathlib import Path

from tracehook._testing import Harness

X, SIZE = 1, 2 << 20
CYCLES, LIMIT = 40_000, 512 * 1024


def _resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_segments_that_come_and_go_behind_a_busy_gate_leave_nothing(busy_gate, harness):
    """A long collective costs no memory: what is freed before it was registered leaves the queue."""
    harness.create(X)

    def cycle(count):
        for number in range(count):
            address = (number % 100 + 1) * SIZE
            harness.alloc(0, address, SIZE)
            harness.free(0, address, SIZE)

    with busy_gate(X):
        while harness.dropped == 0:  # the ring takes its memory once
            cycle(1000)
        before, calls = _resident(), len(harness.calls())
        cycle(CYCLES)
        assert _resident() - before < LIMIT
        assert len(harness.calls()) == calls


def test_communicators_that_come_and_go_leave_nothing():
    """The registrar forgets a communicator with its end, however many there are in the life of a job."""
    harness = Harness(ring_capacity=64)

    def cycle(count):
        for _ in range(count):
            for pointer in range(1, 9):
                harness.create(pointer, parent=pointer - 1)
            for pointer in range(1, 9):
                harness.retire(pointer) if pointer % 2 else harness.kill(pointer)

    cycle(200)
    before = _resident()
    cycle(2000)
    assert _resident() - before < LIMIT
    assert harness.communicators() == []
