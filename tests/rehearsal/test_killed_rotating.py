"""A process is killed while its log begins a new part: what the bound does not take is there, and nothing twice."""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import rehearse

from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.log import reader

KILLS = int(os.environ.get("TRACEHOOK_TEST_ROTATION_KILLS", "6"))
SEED = int(os.environ.get("TRACEHOOK_TEST_SEED", "1"))
AT_ONCE = 3  # rounds of one process
LIMIT = 8 << 20  # bytes
LONGEST_STEP = 400  # events
BLOCK = 512  # bytes, of st_blocks
KILLED = -9


def missing(log: reader.ProcessLog) -> list[str]:
    """Return how the numbers of the events are no row, apart from events that a line sums."""
    first = log.begin.get("from_seq", 1)
    numbers = [event["seq"] for event in log.events if event.get("seq", 0) >= first]
    summed = sum(event["count"] for event in log.events if event["event"] == "log.summed")
    holes = numbers[-1] + 1 - first - len(numbers)
    if numbers != sorted(set(numbers)) or not 0 <= holes <= summed or (first == 1 and holes != summed):
        return [f"{len(numbers)} events from {first} to {numbers[-1]}, and lines sum {summed}"]
    return []


def unlike(log: reader.ProcessLog, noted: list[int]) -> list[str]:
    """Return how the log differs from what the process noted of its segments."""
    alive: dict[int, int] = {}
    held: set[int] = set()
    best = None
    for index, event in enumerate(log.events):
        segment = event.get("segment", 0)
        match event["event"]:
            case "segment.alloc":
                alive[segment] = int(event["addr"], 16)
            case "register.local":
                held.add(segment)
            case "deregister.local":
                held.remove(segment)
            case "segment.free":
                if segment in held:
                    return [f"segment {segment} was freed while it was registered"]
                del alive[segment]
        if sorted(alive.values()) == noted:
            best = index
    if best is None:
        return [f"noted {len(noted)} segments, and at no moment the log knows of the same"]
    if (after := len(log.events) - best) > LONGEST_STEP:
        return [f"{after} events after the last step"]
    return []


def judge(directory: Path, told: dict[str, Any]) -> list[str]:
    """Return what is wrong with one round."""
    out = [] if told["status"] == KILLED else [f"ended with {told['status']}"]
    if (size := sum(file.stat().st_blocks * BLOCK for file in directory.iterdir())) > LIMIT:
        out.append(f"{size} bytes")
    (log,) = reader.read_directory(directory)
    out += missing(log)
    if not any(event["event"] == "log.summed" for event in log.events[-LONGEST_STEP:]):
        out += unlike(log, told["noted"])
    if "from_seq" in log.begin and log.begin["part"] > 1 and size < LIMIT / 2:
        out.append(f"more was thrown away than the bound asks for: {size} bytes are left")
    with Store(directory) as store:
        true = {"no-end", "torn-line"} if log.torn else {"no-end"}
        out += [f"{each.rule}: {each.message}" for each in check(store) if each.rule not in true]
    return out


@pytest.mark.parametrize("first", range(0, KILLS, AT_ONCE))
def test_nothing_is_lost_that_the_bound_leaves(tmp_path: Path, first: int) -> None:
    """Events follow each other without a hole; segments that lived are told; the audit finds only the end missing."""
    env = {"SYMM_REGISTER_LOG_LIMIT": "8MiB"}
    count = min(AT_ONCE, KILLS - first)
    run = rehearse("killed_rotating.py", str(first), str(count), str(SEED), str(tmp_path), env=env, timeout=170)
    assert run.status == 0, run.output
    assert run.broken == [], run.output
    told = run.facts()
    assert len(told) == count
    wrong = []
    for number, facts in told.items():
        directory = tmp_path / f"{int(number):03}"
        if lines := judge(directory, facts):
            wrong.append(f"round {number}: {facts['moment']} of part {facts['part']}: {lines}")
        else:
            shutil.rmtree(directory)
    moments = Counter(facts["moment"] for facts in told.values())
    unfinished = sum(bool(facts["unfinished"]) for facts in told.values())
    print(f"{count} kills: {dict(moments)}; {unfinished} left an unfinished file")
    assert wrong == [], "\n".join(wrong)
