"""How long `tracehook watch` and `summary` take over the logs of very many ranks, and what memory and how many files.

The logs are multiplied from those of a real rehearsed job on four ranks, in a folder for each host of eight ranks, as
`%h` makes them (tests/support/multiplied.py).

    python benchmarks/watch_scale.py [--ranks 1024,4096,16384] [--events 200] [--from DIR] [--keep DIR]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
LOOKS = 10


def look(directory: Path, interval: float) -> None:
    """Look at a directory as `tracehook watch` does, ten times more when all is read, and print what that took."""
    from rich.console import Console

    from tracehook.audit.live import Follower
    from tracehook.commands import watch_table
    from tracehook.commands.watch import first_look

    most_files = 0
    over = threading.Event()

    def count_files() -> None:
        nonlocal most_files
        while not over.wait(0.05):
            most_files = max(most_files, sum(1 for _ in Path("/proc/self/fd").iterdir()))

    threading.Thread(target=count_files, daemon=True).start()
    console = Console(file=io.StringIO(), width=120, height=40, force_terminal=True)
    began = time.monotonic()
    follower = Follower(directory)
    steps = []
    rest = 0.0
    while not follower.has_caught_up:
        seconds = first_look(interval, rest)
        steps.append(_step(follower, watch_table, console, seconds))
        rest = steps[-1][0] - seconds
    whole = time.monotonic() - began
    cpu = _cpu()
    later: list[tuple[float, float]] = []
    for _ in range(LOOKS):
        time.sleep(max(0.0, interval - (later[-1][0] if later else 0.0)))
        later.append(_step(follower, watch_table, console, interval / 2))
    over.set()
    out = {
        "processes": len(follower.processes),
        "first picture": round(steps[0][0], 2),
        "slowest while reading": round(max(step[0] for step in steps), 2),
        "all read": round(whole, 2),
        "cpu until then": round(cpu, 2),
        "later, median": round(sorted(step[0] for step in later)[LOOKS // 2], 3),
        "later, slowest": round(max(step[0] for step in later), 3),
        "later, cpu": [round(step[1], 3) for step in later],
        "hangs": len(follower.hangs),
        "files": most_files,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(out))
    if os.environ.get("SHOW"):
        Console(width=120).print(watch_table.picture(follower, 40))


def _step(follower: Any, watch_table: Any, console: Any, seconds: float) -> tuple[float, float]:
    began, cpu = time.monotonic(), _cpu()
    follower.look(seconds)
    console.print(watch_table.picture(follower, 40))
    return time.monotonic() - began, _cpu() - cpu


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def command(*arguments: object) -> None:
    """Run a command of tracehook and print what it took."""
    began = time.monotonic()
    line = [sys.executable, "-m", "tracehook", *map(str, arguments)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    lines = said.splitlines()
    if os.environ.get("SHOW") or os.waitstatus_to_exitcode(status):
        print("\n".join(lines[:12] + lines[-12:]))
    print(
        f"  {' '.join(map(str, arguments[:-1]))}: {seconds:.2f} s, {cpu:.2f} s of one core, "
        f"{usage.ru_maxrss >> 10} MiB, {len(lines)} lines, status {os.waitstatus_to_exitcode(status)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1024,4096,16384")
    parser.add_argument("--events", type=int, default=200, help="of each rank")
    parser.add_argument("--from", dest="source", type=Path, help="logs of four ranks, instead of a rehearsal")
    parser.add_argument("--keep", type=Path, help="where to make the logs, and to leave them")
    parser.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.look:
        look(arguments.look, 1.0)
        return
    from audit_scale import rehearse
    from support.multiplied import multiply, path_of, read

    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.source or Path(scratch, "source")
        if arguments.source is None:
            rehearse(source)
        template = read(source)
        for ranks in (int(part) for part in arguments.ranks.split(",")):
            target = (arguments.keep or Path(scratch)) / f"ranks{ranks}"
            if not target.exists():
                target.mkdir(parents=True)
                multiply(template, target, ranks, arguments.events, folders=True)
            logs = [path_of(target, rank, folders=True) for rank in range(ranks)]
            size = sum(path.stat().st_size for path in logs) >> 20
            print(f"{ranks} ranks on {ranks // 8} hosts, {size} MiB", flush=True)
            command("summary", target)
            command("watch", "--once", target)
            command("watch", "--once", "--json", target)
            subprocess.run([sys.executable, __file__, "--look", target], check=True)


if __name__ == "__main__":
    main()
