"""How long `tracehook audit` takes, and how much memory, over the logs of very many ranks.

The logs are multiplied from those of a real rehearsed job on four ranks: communicators of all ranks become one of all the
new ranks, smaller ones stay among each four, and the job's events follow one another again with new numbers until each rank has
as many as wanted.

    python benchmarks/audit_scale.py [--ranks 64,128,256,512,1024] [--events 2000] [--repeat 3] [--from DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
JOB = ROOT / "tests" / "rehearsal" / "jobs" / "symmetric_groups.py"
TEMPLATE_RANKS = 4
# Numbers that are never used again in a process: each repetition takes those that follow.
NUMBERS = ("seq", "segment", "pool_segment", "comm_id")
SHIFT = 40  # binary digits of an address that stay


def rehearse(directory: Path) -> None:
    """Run the job that is multiplied."""
    launch = [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node", str(TEMPLATE_RANKS), JOB]
    command = [SCRIPTS / "tracehook", "rehearse", "--devices", str(TEMPLATE_RANKS), "--log", directory, "--", *launch]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read(directory: Path) -> list[list[dict[str, Any]]]:
    """Return the events of the four ranks."""
    logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in directory.glob("*.rank[0-9]*.jsonl")]
    return sorted((log for log in logs if log[0]["rank"] is not None), key=lambda log: log[0]["rank"])


def multiply(template: list[list[dict[str, Any]]], target: Path, ranks: int, events: int) -> int:
    """Write the logs of `ranks` ranks to `target`; return how many events they have."""
    written = 0
    for rank in range(ranks):
        log = template[rank % TEMPLATE_RANKS]
        begin = {**log[0], "rank": rank, "world_size": ranks, "pid": 10_000 + rank, "host": f"node{rank // 8}"}
        lines = [json.dumps(begin)]
        body = [event for event in log[1:] if "seq" in event]
        body += _give_back(body)
        largest = {name: max(event.get(name, 0) for event in body) for name in NUMBERS}
        length = body[-1]["t_ns"] - body[0]["t_ns"] + 1_000_000
        for cycle in range(-(-events // len(body))):
            for event in body:
                new = {**event, "t_ns": event["t_ns"] + cycle * length}
                new |= {name: event[name] + cycle * largest[name] for name in NUMBERS if name in event}
                if "comm" in event:
                    new |= _communicator(event, log, rank, ranks, cycle)
                lines.append(json.dumps(new, separators=(",", ":")))
        lines.append(json.dumps({**log[-1], "t_ns": new["t_ns"] + 1}))
        name = f"multiplied.rank{rank}.node{rank // 8}.{10_000 + rank}.jsonl"
        target.joinpath(name).write_text("\n".join(lines) + "\n")
        written += len(lines)
    return written


def _give_back(body: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the frees that the job leaves to the end of its process, so that it can begin again."""
    left: dict[tuple[str, int], dict[str, Any]] = {}
    for event in body:
        match event["event"]:
            case "segment.alloc" | "segment.adopt":
                left["segment.free", event["segment"]] = event
            case "segment.free":
                del left["segment.free", event["segment"]]
            case "pool.grow":
                left["pool.shrink", event["pool_segment"]] = event
            case "pool.shrink":
                del left["pool.shrink", event["pool_segment"]]
    last = body[-1]
    return [
        {**event, "event": name, "seq": last["seq"] + place, "t_ns": last["t_ns"] + 1000 * place}
        for place, ((name, _), event) in enumerate(left.items(), start=1)
    ]


def _communicator(
    event: dict[str, Any], log: list[dict[str, Any]], rank: int, ranks: int, cycle: int
) -> dict[str, Any]:
    key = int(event["comm"], 16) + (cycle << SHIFT)
    if _size(log, event["comm"]) < TEMPLATE_RANKS:
        return {"comm": f"{(key + rank // TEMPLATE_RANKS) & (1 << 64) - 1:016x}"}
    changed: dict[str, Any] = {"comm": f"{key & (1 << 64) - 1:016x}", "comm_rank": rank}
    return changed | ({"ranks": ranks} if "ranks" in event else {})


def _size(log: list[dict[str, Any]], comm: str, known: dict[str, int] = {}) -> int:  # noqa: B006
    if comm not in known:
        known[comm] = next(event["ranks"] for event in log if event.get("comm") == comm and "ranks" in event)
    return known[comm]


def audit(directory: Path) -> tuple[float, float, int]:
    """Return seconds, MiB at the most, and the exit status of one audit."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(SCRIPTS / "tracehook"), "audit", str(directory)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        print(said)
    return time.monotonic() - began, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,128,256,512,1024")
    parser.add_argument("--events", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--from", dest="source", type=Path, help="logs of four ranks, instead of a rehearsal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.source or Path(scratch, "source")
        if arguments.source is None:
            rehearse(source)
        template = read(source)
        for ranks in (int(part) for part in arguments.ranks.split(",")):
            target = Path(scratch, f"ranks{ranks}")
            target.mkdir()
            events = multiply(template, target, ranks, arguments.events)
            size = sum(path.stat().st_size for path in target.iterdir()) / (1 << 20)
            for _ in range(arguments.repeat):
                seconds, most, status = audit(target)
                print(
                    f"{ranks:5} ranks, {events:9,} events, {size:6.0f} MiB: {seconds:6.2f} s, {seconds / events * 1e6:6.2f} us "
                    f"an event, {most:6.0f} MiB, status {status}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
