"""What it costs to count a call (``tracehook/cpp/events/calls.h``), in C++ on our own sources. No device is needed.

Passing the gate of a communicator with and without the count, in turn in one run.
"""

from __future__ import annotations

import ctypes

import native
import stats

CALLS = 2_000_000
REPETITIONS = 31
LIMIT = 5  # ns


def main() -> None:
    """Measure, and print."""
    library = ctypes.CDLL(str(native.placement()))
    library.make_world.restype = ctypes.c_void_p
    library.time_passage.restype = ctypes.c_double
    world = ctypes.c_void_p(library.make_world(ctypes.c_size_t(1)))

    def passage(counted: bool) -> float:
        return float(library.time_passage(world, ctypes.c_size_t(CALLS), int(counted))) / CALLS

    passage(True), passage(False)
    pairs = [(passage(False), passage(True)) for _ in range(REPETITIONS)]
    print(stats.describe("passing the gate, not counted", [without for without, _ in pairs], "ns"))
    print(stats.describe("passing the gate, counted", [counted for _, counted in pairs], "ns"))
    print(stats.describe("counting, added", [counted - without for without, counted in pairs], "ns", LIMIT))


if __name__ == "__main__":
    main()
