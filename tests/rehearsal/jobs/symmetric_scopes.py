"""Scopes in all their uses. Each case that is named on the command line tells one fact of its own name."""

import asyncio
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import DTensor, Shard
from tracehook import _core
from tracehook.symmetric_memory import public, state

from common import MB, RANK, WORLD, filled, nccl_calls, raised, start, tell, together
from symmetric_tools import SIZE, caught, empty, reduced, refill, symmetric, windows

Facts = dict[str, Any]


def new_group(ranks: list[int] | None = None) -> dist.ProcessGroup:
    """Return a group that has its communicator already."""
    return dist.new_group(list(range(WORLD)) if ranks is None else ranks, device_id=device)


def held(group: dist.ProcessGroup) -> int:
    """How many windows the group has."""
    return sum(row["windows"] for row in tracehook.status()["windows"] if row["group"] == group.group_name)


def nothing_new() -> Facts:
    """A thousand scopes that need nothing new, and a thousand empty ones."""
    group = new_group()
    tensor = symmetric(RANK + 1, group=group)
    del tensor
    memory: Any = state.memory()
    found = memory.windows(group)
    names = ("ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclAllReduce", "ncclCommRegister")
    before = (found._plans.trips, found._uses.trips, *map(nccl_calls, names))
    for _ in range(1000):
        with tracehook.symmetric(group):
            tensor = empty()
        del tensor
        with tracehook.symmetric(group):
            pass
    after = (found._plans.trips, found._uses.trips, *map(nccl_calls, names))
    return {"done": [b - a for a, b in zip(before, after, strict=True)], "windows": held(group)}


def nested_same() -> Facts:
    """A scope of the same group in a scope, three levels deep, with a disabled one between."""
    group = new_group()
    counts = []
    with tracehook.symmetric(group):
        first = empty()
        with tracehook.symmetric(group):
            second = empty()
            with tracehook.symmetric(group, disabled=True):
                third = empty()
        counts.append(held(group))
        fourth = empty()
    counts.append(held(group))
    outside = empty()
    made = [first, second, third, fourth, outside]
    return {
        "counts": counts,
        "symmetric": [tracehook.is_symmetric(tensor, group) for tensor in made],
        "sums": [reduced(refill(tensor, RANK + 1), group) for tensor in made],
    }


def nested_different() -> Facts:
    """Scopes of three groups inside each other: the innermost decides."""
    groups = [new_group() for _ in range(3)]
    with tracehook.symmetric(groups[0]):
        first = empty()
        with tracehook.symmetric(groups[1]):
            second = empty()
            with tracehook.symmetric(groups[2]):
                third = empty()
            again = empty()
        last = empty()
    made = [first, second, third, again, last]
    return {
        "symmetric": [[tracehook.is_symmetric(tensor, group) for group in groups] for tensor in made],
        "sums": [reduced(refill(tensor, RANK + 1), groups[min(i, 4 - i)]) for i, tensor in enumerate(made)],
    }


def threads_by_turns() -> Facts:
    """Two threads with a group and a stream each. Another one is first to make its tensors on each rank."""
    groups = [new_group(), new_group()]
    sums: list[list[float]] = [[], []]
    errors: list[str] = []
    turns = [threading.Event() for _ in groups]
    turns[RANK].set()

    def make(index: int) -> list[torch.Tensor]:
        kept = []
        for number in range(4):
            with tracehook.symmetric(groups[index]):
                kept.append(torch.empty(1000 * (1 + number + 7 * index), device=device))
        return kept

    def work(index: int) -> None:
        torch.cuda.set_device(device)
        turns[index].wait(30)
        try:
            # The end of the first scope waits for the other rank, whose threads take their turns the other way round.
            with torch.cuda.stream(torch.cuda.Stream()):
                with tracehook.symmetric(groups[index]):
                    first = torch.empty(1000 * (1 + index), device=device)
                    turns[1 - index].set()
                sums[index] += [reduced(refill(tensor, RANK + 1), groups[index]) for tensor in [first, *make(index)]]
        except Exception as problem:
            errors.append(f"{type(problem).__name__}: {problem}")

    together(partial(work, 0), partial(work, 1))
    return {"errors": errors, "sums": sums, "pools": sorted(row["pool"] for row in tracehook.status()["pools"])}


def threads_of_a_pool() -> Facts:
    """A pool of threads makes the scopes of two groups in turn. Another thread takes the next scope on each rank."""
    groups = [new_group(), new_group()]
    sums: list[float] = []
    threads = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]

    def work(index: int, size: float) -> float:
        torch.cuda.set_device(device)
        return reduced(symmetric(RANK + 1, size, groups[index]), groups[index])

    for turn in range(6):
        size = (3, 12, 1)[turn % 3]
        for index in range(2):  # rank 0 takes one thread for both groups, rank 1 takes two
            sums.append(threads[index * RANK].submit(work, index, size).result())
        kept = symmetric(RANK + 1, 2, groups[0])
        sums.append(work(1, size))
        del kept
    for thread in threads:
        thread.shutdown()
    return {"sums": sums}


def groups_come_and_go() -> Facts:
    """Groups follow each other, each with memory of its own in a scope, and of a scope with the default group."""
    held = []
    for _ in range(4):
        group = new_group()
        reduced(symmetric(RANK + 1, SIZE, group), group)
        with tracehook.symmetric([None, group]):
            both = empty()
        reduced(refill(both, RANK + 1))
        del both
        dist.destroy_process_group(group)
        held.append(sum(row["bytes"] for row in tracehook.status()["pools"]) // MB)
    return {"held": held}


def asked_beside_a_scope() -> Facts:
    """While a thread is in a scope, torch is asked again and again whether it could give up a pool."""
    inside, over = threading.Event(), threading.Event()

    def stay() -> None:
        torch.cuda.set_device(device)
        with tracehook.symmetric():
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = {_core.quiet(device.index) for _ in range(21)}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    over.set()
    thread.join()
    return {"beside": sorted(answers), "grown": grown // 1024 // 64, "after": _core.quiet(device.index)}


def other_thread() -> Facts:
    """While one thread is in a scope, what another one makes is ordinary memory."""
    found: list[torch.Tensor] = []
    with tracehook.symmetric():
        together(lambda: found.append(torch.empty(SIZE * MB // 4, device=device)))
        mine = empty()
    return {"symmetric": [tracehook.is_symmetric(mine), tracehook.is_symmetric(found[0])]}


def exception_inside() -> Facts:
    """An exception inside a scope registers nothing; the next scope makes up for it."""
    group = new_group()

    def fail() -> None:
        with tracehook.symmetric(group):
            kept.append(empty())
            raise KeyError("on purpose")

    kept: list[torch.Tensor] = []
    error = caught(fail)[1]
    reason, before = tracehook.explain(kept[0], group).reason, held(group)
    kept.clear()
    tensor = symmetric(RANK + 1, group=group)
    later = tracehook.explain(tensor, group).reason
    return {"error": error, "reason": reason, "before": before, "later": later, "sum": reduced(tensor, group)}


def exception_in_inner() -> Facts:
    """An exception that ends the inner scope only: the outer one registers what it made itself."""
    group = new_group()
    with tracehook.symmetric(group):
        first = empty()
        with suppress(KeyError), tracehook.symmetric(group):
            second = empty()
            raise KeyError("on purpose")
    return {"symmetric": [tracehook.is_symmetric(tensor, group) for tensor in (first, second)]}


def wrong_order() -> Facts:
    """Scopes that do not end in the reverse order of their beginning."""
    outer, inner = new_group(), new_group()
    one, two = tracehook.symmetric(outer), tracehook.symmetric(inner)
    one.__enter__()
    two.__enter__()
    error = caught(lambda: one.__exit__(None, None, None))[1]
    caught(lambda: two.__exit__(None, None, None))
    caught(lambda: one.__exit__(None, None, None))
    return {"error": error, "sum": reduced(symmetric(RANK + 1, group=outer), outer)}


def _state() -> Facts:
    """What this thread has of scopes when none is open."""
    ordinary = empty()
    facts = {
        "open": tracehook.status()["scopes"],
        "in a scope": tracehook._core.in_scope(),
        "in a pool": tracehook._core.pool_segment_at(ordinary.data_ptr()) != 0,
    }
    return facts | {"trimmed": caught(tracehook.trim)[1]}


def tasks() -> Facts:
    """Two tasks of one thread, whose scopes overlap: the first to end is not the innermost."""
    groups = [new_group(), new_group()]

    async def request(group: Any, begins: asyncio.Event, waits: asyncio.Event) -> Any:
        with tracehook.symmetric(group):
            before = empty()
            begins.set()
            await waits.wait()
        return tracehook.is_symmetric(before, group)

    async def both() -> list[Any]:
        first, second = asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(request(groups[0], first, second))
        other = asyncio.create_task(request(groups[1], second, asyncio.Event()))
        raised = await asyncio.gather(one, return_exceptions=True)
        other.cancel()
        return [*raised, *await asyncio.gather(other, return_exceptions=True)]

    raised = [type(problem).__name__ for problem in asyncio.run(both())]
    return {"raised": raised, "state": _state(), "sum": reduced(symmetric(RANK + 1, group=groups[0]), groups[0])}


def generator() -> Facts:
    """A generator that another thread closes: its scope ends there."""
    group = new_group()

    def batches() -> Any:
        with tracehook.symmetric(group):
            yield empty()

    begun = batches()
    next(begun)
    found: list[Any] = []
    together(lambda: found.append(caught(begun.close)[1]))
    state = _state()
    twice = caught(lambda: tracehook.symmetric(group).__exit__(None, None, None))[1]
    return {"error": found[0], "state": state, "twice": twice, "sum": reduced(symmetric(RANK + 1, group=group), group)}


def many_hints() -> Facts:
    """Rank 0 has more hints than are remembered, on a group of its own; then comes the next scope of all."""
    public._MOST_SCOPES = 8
    alone = [dist.new_group([rank]) for rank in range(WORLD)][RANK]
    dist.all_reduce(refill(empty(), 1))
    first = symmetric(RANK + 1)
    for size in range(20 if RANK == 0 else 0):
        with tracehook.symmetric(alone, operation="all_gather", nbytes=size + 1):
            pass
    found, error = caught(lambda: reduced(symmetric(RANK + 1, 2 * SIZE)))
    return {"error": error, "sum": found, "before": reduced(first)}


def hints_of_each_rank() -> Facts:
    """Each rank hints at the size of its own shard: the scopes are alike in all that counts."""
    dist.all_reduce(refill(empty(), 1))
    kept = []

    def scopes() -> float:
        for shard in (RANK, 1):
            with tracehook.symmetric(operation="all_gather", nbytes=shard + 1):
                kept.append(empty(4 * SIZE))
        return reduced(refill(kept[-1], RANK + 1))

    found, error = caught(scopes)
    return {"error": error, "sum": found}


def distributed_tensor() -> Facts:
    """A DTensor, as FSDP2 and tensor parallelism have it: what counts is its local tensor."""
    mesh = init_device_mesh("cuda", (WORLD,))
    with tracehook.symmetric():
        inside = DTensor.from_local(empty(), mesh, [Shard(0)])
    outside = DTensor.from_local(empty(), mesh, [Shard(0)])
    answers = [tracehook.explain(tensor, operation="all_reduce") for tensor in (inside, outside)]
    first, again = ([tracehook.is_symmetric(tensor) for tensor in (inside, outside)] for _ in range(2))
    return {"symmetric": [first, again], "reasons": [answer.reason for answer in answers]}


def many_tensors() -> Facts:
    """Small tensors share segments, and so windows; views of them are symmetric too."""
    group = new_group()
    with tracehook.symmetric(group):
        small = [torch.empty(1000, device=device) for _ in range(64)]
    count = held(group)
    with tracehook.symmetric(group):
        small.append(torch.empty(1000, device=device))
    views = [small[0][10:20], small[0].view(10, 100)[:, ::7], small[0][:0]]
    return {
        "windows": [count, held(group)],
        "symmetric": [all(tracehook.is_symmetric(tensor, group) for tensor in small)]
        + [tracehook.is_symmetric(view, group) for view in views[:2]],
        "sum": reduced(refill(small[-1], RANK + 1), group),
    }


def non_member() -> Facts:
    """A group of rank 0 alone: rank 1 is no member of it."""
    group = dist.new_group([0])
    with tracehook.symmetric(group):
        tensor = empty()
    return {
        "symmetric": tracehook.is_symmetric(tensor, group),
        "reason": tracehook.explain(tensor, group).reason,
        "synced": tracehook.sync(group),
        "trimmed": tracehook.trim(group),
    }


def kept_when_destroyed() -> Facts:
    """Rank 1 keeps its reference to a group that is destroyed; all ranks trim then, and a scope of all comes."""
    group = new_group()
    tensor = symmetric(RANK + 1, group=group)
    del tensor
    dist.destroy_process_group(group)
    if RANK == 0:
        del group
    given_back = tracehook.trim()
    pools = tracehook.status()["pools"]
    found, error = caught(lambda: reduced(symmetric(RANK + 1, SIZE // 2)))
    return {"given_back": given_back, "pools": pools, "sum": found, "error": error}


def same_name() -> Facts:
    """A group is made anew under the same name (torch derives it from the ranks); then the ranks differ in size."""
    names, errors = [], []
    for round_ in range(2):
        group = dist.new_group(list(range(WORLD)), use_local_synchronization=True, device_id=device)
        names.append(group.group_name)
        errors.append(caught(lambda: symmetric(1, SIZE * (1 + RANK * round_), group))[1])  # noqa: B023
        dist.destroy_process_group(group)
    return {"names": len(set(names)), "errors": errors}


def different_acts() -> Facts:
    """Rank 0 is at the end of a scope, the others in sync, and then in trim."""
    group = new_group()
    first = caught(lambda: symmetric(1, group=group) if RANK == 0 else tracehook.sync(group))[1]
    second = caught(lambda: tracehook.sync(group) if RANK == 0 else tracehook.trim(group))[1]
    return {"errors": [first, second], "windows": held(group)}


def after_mismatch() -> Facts:
    """After a mismatch the pools of the ranks differ; trim makes them equal again."""
    group = new_group()
    tracehook.trim(group)
    error = caught(lambda: symmetric(1, (1 + RANK) * 48, group))[1]
    again = caught(lambda: symmetric(1, 48, group))[1]
    given_back = tracehook.trim(group)
    tensor = symmetric(RANK + 1, 48, group)
    return {"errors": [error and error[0], again and again[0]], "given_back": given_back, "sum": reduced(tensor, group)}


def in_a_capture() -> Facts:
    """What waits for other ranks is refused in a capture, and the capture goes on."""
    reduced(symmetric(1))
    source = filled(RANK + 1, SIZE, device)
    out = torch.empty_like(source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        errors = [raised(tracehook.sync), raised(tracehook.trim)]
        out.copy_(source)
        dist.all_reduce(out)
    graph.replay()
    torch.cuda.synchronize()
    return {"errors": errors, "sum": float(out[0].cpu())}


def in_a_group_of_calls() -> Facts:
    """A scope ends between ncclGroupStart and ncclGroupEnd: NCCL writes no window before the end of the group."""
    group = new_group()
    with _coalescing_manager(group=group, device=device):
        made = symmetric(RANK + 1, group=group)
        errors = [raised(act, group) for act in (tracehook.sync, tracehook.trim, tracehook.pause, tracehook.resume)]
        tracehook.reserve(8 * MB, group=group)
        dist.all_reduce(made, group=group)
    torch.cuda.synchronize()
    before = tracehook.explain(made, group).reason
    return {
        "errors": errors,
        "sum": float(made[0].cpu()),
        "before": before,
        "made": tracehook.sync(group),
        "later": tracehook.explain(made, group).reason,
        "again": reduced(symmetric(RANK + 1, group=group), group),
    }


def switched_off() -> Facts:
    """After disable() scopes do nothing; after enable() they do again."""
    group = new_group()
    kept = symmetric(RANK + 1, group=group)
    before = held(group)
    tracehook.disable()
    scope = tracehook.symmetric(group)
    with scope:
        ordinary = empty()
    off = {
        "shared_object": scope is tracehook.symmetric(None),
        "windows": [before, held(group)],
        "symmetric": [tracehook.is_symmetric(tensor, group) for tensor in (kept, ordinary)],
        "sync": tracehook.sync(group),
        "trim": tracehook.trim(group),
        "sums": [reduced(kept, group), reduced(refill(ordinary, RANK + 1), group)],
    }
    tracehook.enable()
    tensor = symmetric(RANK + 1, group=group)
    return {**off, "again": tracehook.is_symmetric(tensor, group), "sum": reduced(tensor, group)}


def status() -> Facts:
    """Status counts pools, segments and windows."""
    group = new_group()
    kept = [symmetric(1, size, group) for size in (32, 48)]
    pool = next(row for row in tracehook.status()["pools"] if row["pool"] == f"group {group.group_name}")
    row = next(row for row in tracehook.status()["windows"] if row["group"] == group.group_name)
    del kept
    tracehook.trim(group)
    left = next(row["windows"] for row in tracehook.status()["windows"] if row["group"] == group.group_name)
    live = pool["bytes"] - pool["retired_bytes"]
    return {"live": live, "segments": pool["segments"], "row": {**row, "group": None}, "left": left}


def forked() -> Facts:
    """In a child that was forked, scopes do nothing, and nothing is called."""
    tensor = symmetric(RANK + 1)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        before = nccl_calls()
        try:
            with tracehook.symmetric():
                pass
            told = (
                f"{tracehook.is_symmetric(tensor)} {tracehook.explain(tensor).reason} {tracehook.sync()} "
                f"{tracehook.trim()} {tracehook.status()['windows']} {nccl_calls() - before}"
            )
        except BaseException as problem:
            told = f"{type(problem).__name__}: {problem}"
        os.write(writable, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    return {"child": os.read(readable, 1000).decode(), "sum": reduced(tensor)}


device = start(seconds=60)
for case in sys.argv[1:]:
    tell(**{case: globals()[case]()})
torch.cuda.synchronize()
dist.destroy_process_group()
tell(ended=windows())
