"""An audit in one process against the same one on two workers of Ray: equal findings, time, and memory.

The logs are multiplied (tests/support/multiplied.py) from those of a real rehearsed job on four ranks; then seven
faults are planted. Each audit runs in turn, as often as --repeat says. Memory is what all processes of an audit have
for themselves at the most (PSS, looked at five times a second).

    python benchmarks/audit_on_ray.py [--ranks 1024] [--events 2000] [--repeat 3] [--from DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from audit_scale import SCRIPTS, rehearse  # noqa: E402
from support.multiplied import multiply, read  # noqa: E402

Event = dict[str, Any]


def log_of(logs: Path, rank: int) -> Path:
    (found,) = logs.glob(f"*.rank{rank}.*.jsonl")
    return found


def rewrite(logs: Path, rank: int, change: Callable[[list[Event]], list[Event]]) -> None:
    file = log_of(logs, rank)
    events = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))


def nth(events: list[Event], number: int, **fields: Any) -> int:
    """Return the place of the event of that number, of those that have these fields; from 0."""
    places = [at for at, event in enumerate(events) if all(event.get(name) == it for name, it in fields.items())]
    return places[number % len(places)]


def changed(number: int, event: str, **fields: Any) -> Callable[[list[Event]], list[Event]]:
    """Return a change of some fields of one event."""

    def change(events: list[Event]) -> list[Event]:
        at = nth(events, number, event=event)
        return [*events[:at], events[at] | fields, *events[at + 1 :]]

    return change


def without(number: int, event: str) -> Callable[[list[Event]], list[Event]]:
    """Return a change: one event is not there, and nothing is missing."""

    def change(events: list[Event]) -> list[Event]:
        at = nth(events, number, event=event)
        later = [each | {"seq": each["seq"] - 1} if "seq" in each else each for each in events[at + 1 :]]
        return events[:at] + later

    return change


# Seven faults, by the rank that has them; the last one is that a rank's log is not there.
FAULTS: list[tuple[str, int, Callable[[list[Event]], list[Event]]]] = [
    ("no end", 17, lambda events: events[:-1]),
    ("a window has another size", 259, changed(5, "register.window", size=4096)),
    ("a window is not made", 388, without(9, "register.window")),
    ("a registration is made for another device", 612, changed(3, "segment.alloc", device=7)),
    ("events are missing", 700, lambda events: events[:300] + events[305:]),
    ("another version of NCCL", 811, changed(0, "trace.begin", nccl="2.99.9")),
]
MISSING = 1001


def plant(logs: Path, ranks: int) -> None:
    for what, rank, change in FAULTS:
        rewrite(logs, rank % ranks, change)
        print(f"planted on rank {rank % ranks}: {what}")
    log_of(logs, MISSING % ranks).unlink()
    print(f"planted on rank {MISSING % ranks}: it left no log")


class Memory(threading.Thread):
    """Looks at a process and its children until they are gone: bytes at the most, of it alone and of all."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.alone = self.all = 0

    def run(self) -> None:
        """Look until the process is gone."""
        while True:
            try:
                family = [self.root, *self.root.children(recursive=True)]
                held = [self._of(process) for process in family]
            except psutil.NoSuchProcess:
                return
            if not held[0]:
                return
            self.alone, self.all = max(self.alone, held[0]), max(self.all, sum(held))
            time.sleep(0.2)

    @staticmethod
    def _of(process: psutil.Process) -> int:
        try:
            return int(process.memory_full_info().pss)
        except psutil.Error:
            return 0


def measure(*options: object) -> tuple[float, float, float, str]:
    """Return seconds, MiB of the command alone and of all its processes, and what it printed."""
    began = time.monotonic()
    command = [str(SCRIPTS / "tracehook"), "audit", "--json", *map(str, options)]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out)
        memory = Memory(process.pid)
        memory.start()
        status = process.wait()
        seconds = time.monotonic() - began
        memory.join()
        out.seek(0)
        said = out.read()
    assert status == 1, f"status {status}: the faults are findings"
    return seconds, memory.alone / (1 << 20), memory.all / (1 << 20), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--events", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--from", dest="source", type=Path, help="logs of four ranks, instead of a rehearsal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.source or Path(scratch, "source")
        if arguments.source is None:
            rehearse(source)
        logs = Path(scratch, "logs")
        logs.mkdir()
        events = multiply(read(source), logs, arguments.ranks, arguments.events)
        size = sum(path.stat().st_size for path in logs.iterdir()) / (1 << 20)
        print(f"{arguments.ranks} ranks, {events:,} events, {size:.0f} MiB")
        plant(logs, arguments.ranks)
        told: dict[str, str] = {}
        times: dict[str, list[float]] = {"one process": [], "two workers": []}
        for _ in range(arguments.repeat):
            for name, options in (("one process", ()), ("two workers", ("--on", "ray"))):
                seconds, alone, of_all, said = measure(*options, logs)
                assert told.setdefault("", said) == said, f"{name} found something else"
                times[name].append(seconds)
                print(
                    f"{name}: {seconds:6.2f} s, {alone:5.0f} MiB, with all its processes {of_all:5.0f} MiB", flush=True
                )
        counts = json.loads(told[""])["counts"]
        one, two = (statistics.median(each) for each in times.values())
        print(f"equal output, {sum(counts.values())} findings: {counts}")
        print(f"medians: {one:.2f} s and {two:.2f} s, ratio {two / one:.2f}")


if __name__ == "__main__":
    main()
