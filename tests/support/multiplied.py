"""The logs of a rehearsed job, multiplied: of more ranks, and of a longer life.

Communicators of all ranks become one of all the new ranks, smaller ones stay among as many as they were, and the job's
events follow one another again, with new numbers, until each rank has as many as wanted.
"""

import json
from pathlib import Path
from typing import Any

Log = list[dict[str, Any]]

RANKS_OF_HOST = 8
# Numbers that are never used again in a process: each repetition takes those that follow.
_NUMBERS = ("seq", "segment", "pool_segment", "comm_id")
_SHIFT = 40  # binary digits of a communicator's key that stay
_PAUSE_NS = 1_000_000  # between two repetitions


def read(directory: Path) -> list[Log]:
    """Return the events of all ranks, in the order of the ranks."""
    logs = [
        [json.loads(line) for line in path.read_text().splitlines()] for path in directory.glob("*.rank[0-9]*.jsonl")
    ]
    return sorted(logs, key=lambda log: log[0]["rank"])


def multiply(template: list[Log], target: Path, ranks: int, events: int, folders: bool = False) -> int:
    """Write the logs of `ranks` ranks with `events` events or more each to `target`; return how many were written.

    `folders`: a host's logs lie in a folder of its own, as ``%h`` makes it.
    """
    written = 0
    for rank in range(ranks):
        path = path_of(target, rank, folders)
        path.parent.mkdir(exist_ok=True)
        written += _write(template[rank % len(template)], len(template), path, rank, ranks, events)
    return written


def path_of(target: Path, rank: int, folders: bool = False) -> Path:
    """Return where the log of a rank is written."""
    host = f"node{rank // RANKS_OF_HOST}"
    return (target / host if folders else target) / f"multiplied.rank{rank}.{host}.{10_000 + rank}.jsonl"


def _write(log: Log, was: int, path: Path, rank: int, ranks: int, events: int) -> int:
    host, pid = f"node{rank // RANKS_OF_HOST}", 10_000 + rank
    body = [event for event in log[1:] if "seq" in event]
    body += _give_back(body)
    whole = {event["comm"] for event in log if event.get("ranks") == was}
    largest = {name: max(event.get(name, 0) for event in body) for name in _NUMBERS}
    length = body[-1]["t_ns"] - body[0]["t_ns"] + _PAUSE_NS
    cycles = -(-events // len(body))
    with path.open("w") as file:
        _put(file, {**log[0], "rank": rank, "world_size": ranks, "pid": pid, "host": host})
        for cycle in range(cycles):
            for event in body:
                new = {**event, "t_ns": event["t_ns"] + cycle * length}
                new |= {name: event[name] + cycle * largest[name] for name in _NUMBERS if name in event}
                if "comm" in event:
                    new |= _communicator(event, event["comm"] in whole, was, rank, ranks, cycle)
                _put(file, new)
        _put(file, {**log[-1], "t_ns": body[-1]["t_ns"] + cycles * length})
    return cycles * len(body) + 2


def _put(file: Any, event: dict[str, Any]) -> None:
    file.write(json.dumps(event, separators=(",", ":")) + "\n")


def _give_back(body: Log) -> Log:
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


def _communicator(event: dict[str, Any], whole: bool, was: int, rank: int, ranks: int, cycle: int) -> dict[str, Any]:
    key = int(event["comm"], 16) + (cycle << _SHIFT)
    if not whole:
        return {"comm": f"{(key + rank // was) & (1 << 64) - 1:016x}"}
    changed: dict[str, Any] = {"comm": f"{key & (1 << 64) - 1:016x}", "comm_rank": rank}
    return changed | ({"ranks": ranks} if "ranks" in event else {})
