"""What logging costs: the journal's thread, for 100,000 events and while nothing happens, and the thread of an event.

Needs neither torch nor devices: ``python benchmarks/journal.py``. The ring and the registrar are tracehook's own
sources with communicators that do nothing (journal.cpp); the journal is the one that runs in a job.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import native
import stats
from stats import Line

from tracehook.log import journal as logs
from tracehook.log.bound import NO_BOUND, Bound
from tracehook.log.event_counts import EventCounts
from tracehook.log.records import RECORD_BYTES

EVENTS = 100_000
PORTION = 50_000  # of a ring for 65,536
DRAINS = 11
REPETITIONS = 31
PUSHES = 20_000
PAIRS = 2_000
PARTS = 20
COMMUNICATORS = 2
EVENTS_OF_A_PAIR = 2 + 2 * COMMUNICATORS
IDLE = 30.0  # seconds
LIMIT = 8 << 20  # bytes of a log with a bound

LINES = [
    Line("drain", f"{EVENTS} events to lines: CPU time", "s", 2),
    Line("bound", "  in parts below a limit / this", "x"),
    Line("push_off", "push: ring in memory, nobody takes", "ns"),
    Line("push_file", "  ring in a file, nobody takes / this", "x"),
    Line("push_logged", "  ring in a file, lines are written / this", "x"),
    Line("push_against", "  file and lines / memory and no lines, both drained", "x"),
    Line("pair_off", f"segment that comes and goes, {COMMUNICATORS} communicators: memory, nobody takes", "ns"),
    Line("pair_file", "  ring in a file, nobody takes / this", "x"),
    Line("pair_logged", "  ring in a file, lines are written / this", "x"),
    Line("pair_against", "  file and lines / memory and no lines, both drained", "x"),
    Line("idle", "journal while nothing happens: CPU seconds an hour", "s"),
]


class World:
    """The ring and the registrar of journal.cpp; to a journal, the native core."""

    def __init__(self, library: ctypes.CDLL, path: str = "") -> None:
        self._library = library
        self._world = ctypes.c_void_p(library.make_world(path.encode(), COMMUNICATORS))
        assert self._world, path
        self._buffer = ctypes.create_string_buffer(4096 * RECORD_BYTES)

    def peek_summed(self, limit: int, least: int) -> None:
        """Return nothing: what is measured is each event's line."""

    def peek(self, limit: int, skip: int = 0) -> bytes:
        """Return the oldest events."""
        count = self._library.peek(self._world, self._buffer, limit, skip)
        return ctypes.string_at(self._buffer, count * RECORD_BYTES)

    def take_calls(self, live: bool) -> list[bytes]:  # noqa: ARG002
        """Return nothing: no communicator was called."""
        return []

    def mark_drained(self, count: int) -> None:
        """Let go of the oldest."""
        self._library.mark_drained(self._world, count)

    def dropped(self) -> int:
        """Return how many found the ring full."""
        return self._library.dropped(self._world)

    def remove_ring_file(self) -> None:
        """Leave it to the folder."""

    def time(self, name: str, rounds: int) -> float:
        """Return nanoseconds a round: the median of short loops, because on a shared machine a long one is broken."""
        part = rounds // PARTS
        loop = getattr(self._library, f"time_{name}")
        return statistics.median(loop(self._world, part) / part for _ in range(PARTS))

    def empty(self) -> None:
        """Let go of all."""
        while data := self.peek(4096):
            self.mark_drained(len(data) // RECORD_BYTES)


def load() -> ctypes.CDLL:
    path = native.journal()
    library = ctypes.CDLL(str(path))
    library.make_world.restype = ctypes.c_void_p
    for name in ("peek", "dropped"):
        getattr(library, name).restype = ctypes.c_size_t
    library.peek.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    library.mark_drained.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for name in ("time_push", "time_segment"):
        getattr(library, name).restype = ctypes.c_double
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def drain(library: ctypes.CDLL, folder: Path, found: stats.Results) -> None:
    """Segments that come and go, turned into lines of a file."""
    for _ in range(DRAINS):
        unbound = to_lines(library, folder, NO_BOUND)
        found["drain"].append(unbound)
        found["bound"].append(to_lines(library, folder, Bound(limit=LIMIT)) / unbound)


def to_lines(library: ctypes.CDLL, folder: Path, bound: Bound) -> float:
    """Return the CPU seconds for EVENTS events, into a log with that bound."""
    world = World(library)
    journal = logs.Journal(world, folder / "a.jsonl", {}, bound=bound)
    spent = taken = 0.0
    while taken < EVENTS:
        world.time("segment", PORTION // EVENTS_OF_A_PAIR)
        begin = time.process_time()
        taken += journal.flush()
        spent += time.process_time() - begin
    assert world.dropped() == 0
    for part in folder.glob("a.*"):
        part.unlink()
    return spent / taken * EVENTS


@contextmanager
def drained(world: World, path: Path | None, counts: EventCounts | None = None) -> Iterator[None]:
    """A journal that never rests: more than any job asks of it, so that the loop always meets it."""
    journal = logs.Journal(world, path, {})
    journal.tally = counts
    ending, begun = threading.Event(), threading.Event()

    def work() -> None:
        while not ending.is_set():
            journal.flush()
            begun.set()

    world.time("push", 2 * 4096)  # something to do when the loop starts
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    yield
    ending.set()
    thread.join()
    journal.close(dict)


def thread_of_the_event(library: ctypes.CDLL, folder: Path, found: stats.Results) -> None:
    memory, file = World(library), World(library, str(folder / "a.ring"))
    for kind, loop, rounds in (("push", "push", PUSHES), ("pair", "segment", PAIRS)):
        for world in (memory, file):  # every page of the ring
            for _ in range(2):
                world.time("push", 40_000)
                world.empty()
        for number in range(REPETITIONS):
            off = memory.time(loop, rounds)
            in_file = file.time(loop, rounds)
            memory.empty()
            file.empty()
            with drained(memory, None):
                unlogged = memory.time(loop, rounds)
            with drained(file, folder / f"{kind}{number}.jsonl"):
                logged = file.time(loop, rounds)
            assert memory.dropped() == file.dropped() == 0
            found[f"{kind}_off"].append(off)
            found[f"{kind}_file"].append(in_file / off)
            found[f"{kind}_logged"].append(logged / off)
            found[f"{kind}_against"].append(logged / unlogged)


def idle(folder: Path, found: stats.Results) -> None:
    """The native core's own ring, because it copies what there is, and a process that does nothing else."""
    from tracehook import _core

    _core.make_process(os.fsencode(folder / "idle.ring"), 65_536)
    journal = logs.Journal(_core, folder / "idle.jsonl", {})
    journal.start()
    for _ in range(3):
        begin = time.process_time()
        time.sleep(IDLE / 3)
        found["idle"].append((time.process_time() - begin) / (IDLE / 3) * 3600)
    journal.close(dict)


def main() -> None:
    found: stats.Results = defaultdict(list)
    library = load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drain(library, folder, found)
        thread_of_the_event(library, folder, found)
        idle(folder, found)
    stats.show([line for line in LINES if line.name in found], found)


if __name__ == "__main__":
    main()
