"""Scopes beside what PyTorch does with its memory on this and other threads. Each case tells a fact of its own name."""

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, start, tell
from symmetric_tools import caught, empty, reduced, refill, symmetric

Facts = dict[str, Any]


def new_group() -> dist.ProcessGroup:
    """Return a group that has its communicator already."""
    return dist.new_group(list(range(WORLD)), device_id=device)


@contextmanager
def other_thread(context: Any) -> Iterator[None]:
    """Have another thread stay in `context` meanwhile; what it raises is raised here."""
    entered, leave, problems = threading.Event(), threading.Event(), []

    def stay() -> None:
        try:
            torch.cuda.set_device(device)
            with context() as found:
                kept = torch.empty(4, device=device)
                entered.set()
                leave.wait(60)
                del kept, found
        except Exception as problem:
            problems.append(problem)
            entered.set()

    thread = threading.Thread(target=stay, name="stays")
    thread.start()
    entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join(60)
    if problems:
        raise problems[0]


def trim_inside() -> Facts:
    """Trim in a scope of its own thread, then after it."""
    first, second = new_group(), new_group()
    gone = symmetric(1, group=first)
    del gone
    errors = []
    with tracehook.symmetric(first):
        kept = empty()
        errors.append(caught(lambda: tracehook.trim(first))[1])
        with tracehook.symmetric(second):
            errors.append(caught(lambda: tracehook.trim(first))[1])
        with tracehook.symmetric(first, disabled=True):
            errors.append(caught(lambda: tracehook.trim(first))[1])
    del kept
    return {"errors": errors, "given_back": tracehook.trim(first)}


def _trimmed_beside(context: Any) -> Facts:
    group = new_group()
    gone = symmetric(RANK + 1, group=group)
    del gone
    with other_thread(context):
        beside = tracehook.trim(group)
    total = reduced(symmetric(RANK + 1, 16, group), group)
    return {"bytes": [beside, tracehook.trim(group)], "sum": total}


def trim_beside_scope() -> Facts:
    """Trim while another thread is in a scope of another group."""
    group = new_group()
    return _trimmed_beside(lambda: tracehook.symmetric(group))


def trim_beside_capture() -> Facts:
    """Trim while another thread captures a graph."""
    stream = torch.cuda.Stream()
    refill(empty(1), 1)
    graph = torch.cuda.CUDAGraph()
    found = _trimmed_beside(lambda: torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"))
    graph.replay()
    torch.cuda.synchronize()
    return found


def whose_pool() -> Facts:
    """A scope under use_mem_pool, first alone, then while another thread is in a scope of the group; and nested."""
    group = new_group()
    # Before the pool of the program: its destructor must find no scope open (PyTorch aborts otherwise).
    mine = torch.cuda.MemPool()

    def under_the_pool() -> list[bool]:
        with torch.cuda.use_mem_pool(mine):
            before = empty(4)
            with tracehook.symmetric(group):
                inside = empty(4)
        return [tracehook.is_symmetric(tensor, group) for tensor in (before, inside)]

    def nested() -> list[bool]:
        with tracehook.symmetric(group):
            outer = empty(4)
            with torch.cuda.use_mem_pool(mine):
                between = empty(4)
                with tracehook.symmetric(group):
                    inner = empty(4)
            last = empty(4)
        return [tracehook.is_symmetric(tensor, group) for tensor in (outer, between, inner, last)]

    found: Facts = {"alone": [under_the_pool(), nested()]}
    with other_thread(lambda: tracehook.symmetric(group)):
        found["beside"] = [under_the_pool(), nested()]
    found["after"] = [under_the_pool(), nested()]
    kept.append(mine)
    return found


def whose_pool_in_a_capture() -> Facts:
    """A scope in a capture, first alone, then while another thread is in a scope of captured graphs."""
    group = new_group()
    symmetric(1, group=group)
    stream = torch.cuda.Stream()

    def captured() -> str:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"), tracehook.symmetric(group):
            tensor = empty(4)
        kept.extend((graph, tensor))
        return tracehook.explain(tensor, group).reason

    found = [captured()]
    with other_thread(lambda: tracehook.symmetric(group, graph=True)):
        found.append(captured())
    return {"reasons": found}


def open_scopes() -> Facts:
    """What status says of the scopes that are open."""
    group = new_group()
    with other_thread(lambda: tracehook.symmetric(group)), tracehook.symmetric(group), tracehook.symmetric(group):
        rows = tracehook.status()["scopes"]
    named = {row["thread"]: row for row in rows}
    return {
        "threads": sorted(named),
        "depths": [named[name]["depth"] for name in sorted(named)],
        "groups": [row["group"] == f"group {group.group_name}" for row in rows],
        "open": [0 <= row["seconds"] < 60 for row in rows],
        "after": tracehook.status()["scopes"],
    }


def out_of_memory() -> Facts:
    """Cached memory would serve, and PyTorch does not give it back while a scope is open. The program tries again."""
    total = torch.cuda.mem_get_info()[1] // MB
    cached = empty(total * 0.6)
    del cached
    told = []
    try:
        with tracehook.symmetric(), tracehook.symmetric():
            empty(total * 0.5)
    except torch.OutOfMemoryError as problem:
        told = traceback.format_exception_only(problem)
    tensor = symmetric(RANK + 1, total * 0.5)
    return {"named": "".join(told).partition("tracehook:")[2], "after": tracehook.is_symmetric(tensor)}


def out_of_memory_beside() -> Facts:
    """The same outside of all scopes, while another thread is in one; twice, and after it."""
    total = torch.cuda.mem_get_info()[1] / MB
    cached = empty(total * 0.6)
    del cached
    with other_thread(tracehook.symmetric):
        errors = [caught(lambda: empty(total * 0.9))[1] for _ in range(2)]
    return {"errors": [error[0] if error else None for error in errors], "after": empty(total * 0.9).numel() > 0}


def out_of_memory_in_empty() -> Facts:
    """The same with tracehook.empty, and what does not fit at all."""
    total = torch.cuda.mem_get_info()[1]
    cached = empty(total * 0.6 / MB)
    del cached
    tensor = tracehook.empty(int(total * 0.5), dtype=torch.uint8)
    error = caught(lambda: tracehook.empty(2 * total, dtype=torch.uint8))[1]
    return {"symmetric": tracehook.is_symmetric(tensor), "error": error[0] if error else None}


kept: list[object] = []
device = start(seconds=60)
refill(empty(1), 1)
for case in sys.argv[1:]:
    tell(**{case: globals()[case]()})
torch.cuda.synchronize()
dist.destroy_process_group()
