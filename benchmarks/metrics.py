"""What metrics cost the log: batches of events are counted (``log/event_counts.py``), or not, in turn in one run.

Needs neither torch nor devices: ``python benchmarks/metrics.py``. On the ring and registrar of journal.py, with the
journal that runs in a job: the thread that drains the ring, and the thread of an event while that one never rests.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path

import stats
from journal import EVENTS_OF_A_PAIR, PUSHES, World, drained, load
from stats import Line

from tracehook.log.encoding import dumps
from tracehook.log.event_counts import EventCounts
from tracehook.log.journal import Journal

PAIRS = 31
PORTION = 12_000  # events; short, because on a shared machine a long loop is seldom left alone
LIMIT = 1.02

LINES = [
    Line("drain", f"{PORTION} events to lines, not counted: CPU time", "s"),
    Line("drain_ratio", "  counted / this", "x", LIMIT),
    Line("drain_noise", "  not counted / this, once more", "x"),
    Line("push", "push while lines are written, not counted", "ns"),
    Line("push_ratio", "  counted / this", "x", LIMIT),
    Line("push_noise", "  not counted / this, once more", "x"),
]


def drain(world: World, path: Path, counted: bool) -> float:
    """Return the CPU time of writing a portion of events: segments that come and go."""
    journal = Journal(world, path, {})
    journal.tally = EventCounts() if counted else None
    world.time("segment", PORTION // EVENTS_OF_A_PAIR)
    begin = time.process_time()
    journal.flush()
    spent = time.process_time() - begin
    path.unlink()
    return spent


def push(world: World, path: Path, counted: bool) -> float:
    """Return nanoseconds of a push meanwhile."""
    with drained(world, path, EventCounts() if counted else None):
        spent = world.time("push", PUSHES)
    path.unlink()
    return spent


def main() -> None:
    """Measure, and print."""
    found: stats.Results = defaultdict(list)
    library = load()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log.jsonl"
        world = World(library, str(Path(name) / "a.ring"))
        for what, measure in (("drain", drain), ("push", push)):
            measure(world, path, True), measure(world, path, False)
            for number in range(PAIRS):
                # Each ratio has the mean of one before and one after below the line.
                before, counted, after = (measure(world, path, kind) for kind in (False, True, False))
                found[what].append(before)
                found[f"{what}_ratio"].append(2 * counted / (before + after))
                found[f"{what}_noise"].append(after / before if number % 2 else before / after)
        assert world.dropped() == 0
    print(f"lines by {dumps.__module__}")
    stats.show(LINES, found)


if __name__ == "__main__":
    main()
