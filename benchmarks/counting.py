"""What it costs to count a call (``tracehook/cpp/events/calls.h``), in C++ on our own sources. No device is needed.

Passing the gate of a communicator without the count, with it, and with the count by kinds (``tally.h``) too, in turn in
one run.
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

    def passage(counted: int) -> float:
        return float(library.time_passage(world, ctypes.c_size_t(CALLS), counted)) / CALLS

    def turn() -> tuple[float, float, float]:
        return passage(0), passage(1), passage(2)

    turn()
    turns = [turn() for _ in range(REPETITIONS)]
    print(stats.describe("passing the gate, not counted", [without for without, _, _ in turns], "ns"))
    print(stats.describe("passing the gate, counted", [counted for _, counted, _ in turns], "ns"))
    print(stats.describe("passing the gate, counted by kinds too", [kinds for _, _, kinds in turns], "ns"))
    print(stats.describe("counting, added", [counted - without for without, counted, _ in turns], "ns", LIMIT))
    print(stats.describe("counting by kinds, added", [kinds - counted for _, counted, kinds in turns], "ns", LIMIT))
    print(stats.describe("by kinds / counted", [kinds / counted for _, counted, kinds in turns], ""))


if __name__ == "__main__":
    main()
