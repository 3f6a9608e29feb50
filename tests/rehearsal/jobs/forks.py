"""A process that forks: with CUDA up in the parent, or before, or inside of a scope. Argument: the way."""

import atexit
import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, calls, filled, forked, nccl_calls, start, tell


def child_says(**facts: object) -> None:
    os.write(1, f"fact 99 {json.dumps(facts)}\n".encode())


def in_child(act: Callable[[], object]) -> int:
    """Return the exit status of a child that did that, and then what a program does at its end."""

    def whole() -> None:
        act()
        atexit._run_exitfuncs()

    return forked(whole)


def look_around() -> None:
    before = calls(), nccl_calls()
    states = [tracehook.status()["state"]]
    tracehook.disable()
    try:
        tracehook.enable()
        complaint = ""
    except RuntimeError as problem:
        complaint = str(problem)
    states.append(tracehook.status()["state"])
    child_says(states=states, complaint=complaint, communicators=tracehook.status()["communicators"])
    atexit._run_exitfuncs()
    child_says(calls=[calls() - before[0], nccl_calls() - before[1]])


def do_nothing() -> None:
    before = calls(), nccl_calls()
    atexit._run_exitfuncs()
    child_says(idle=[calls() - before[0], nccl_calls() - before[1]])


def use_cuda(size: int = 48, say: Callable[..., None] = child_says) -> None:
    device = start()
    tensor = filled(1, size, device)
    dist.all_reduce(tensor)
    status = tracehook.status()
    say(pid=os.getpid(), state=status["state"], log=status["log"], held=[c["held"] for c in status["communicators"]])
    dist.destroy_process_group()


def enable_and_use_cuda() -> None:
    tracehook.enable()
    use_cuda()


def share_a_scope(rank: int) -> None:
    """Meet the other process in a scope, as a rank of two."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(sys.argv[2], 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, device_id=device)
    with tracehook.symmetric():
        tensor = torch.ones(1 << 18, device=device)
    dist.all_reduce(tensor)
    (child_says if rank else tell)(sum=tensor.sum().item(), symmetric=tracehook.is_symmetric(tensor))
    dist.barrier()
    dist.destroy_process_group()


def spawned() -> None:
    use_cuda(72)


def in_scopes() -> None:
    """A child that was forked in a scope of its parent leaves it: in order, by an exception, or by the collector."""
    device = start()
    group = dist.group.WORLD
    statuses = []

    def reduced(tensor: torch.Tensor) -> tuple[float, bool]:
        """Return the sum over the ranks, and whether the tensor is symmetric."""
        tensor.fill_(RANK + 1)
        dist.all_reduce(tensor)
        return float(tensor.mean()), tracehook.is_symmetric(tensor, group)

    def in_scope() -> Iterator[torch.Tensor]:
        """Yield a tensor of a scope, and leave the scope when the caller goes on."""
        with tracehook.symmetric(group):
            yield torch.empty(1 << 21, device=device)

    def by_collector() -> None:
        generators.clear()
        gc.collect()

    for name, raised in (("in_order", (None, None)), ("by_exception", (SystemExit, SystemExit(0)))):
        scope = tracehook.symmetric(group)
        scope.__enter__()
        inside = torch.empty(1 << 23, device=device)
        if RANK == 0 or name == "in_order":
            statuses.append(forked(lambda: scope.__exit__(raised[0], raised[1], None)))  # noqa: B023
        scope.__exit__(None, None, None)
        tell(**{name: reduced(inside)})
    generators = [in_scope()]
    inside = next(generators[0])
    if RANK == 0:
        statuses.append(forked(by_collector))
    assert next(generators[0], None) is None
    tell(by_collector=reduced(inside), statuses=statuses)
    dist.destroy_process_group()


if __name__ == "__main__":
    way = sys.argv[1]
    if way == "after":
        device = start()
        kept = filled(1, 24, device)
        dist.all_reduce(kept)
        tell(statuses=[in_child(look_around), in_child(do_nothing)])
        more = torch.empty(48 * MB, dtype=torch.uint8, device=device)
        dist.all_reduce(kept)
        tell(held=[row["held"] for row in tracehook.status()["communicators"]])
        dist.destroy_process_group()
    elif way == "disabled":
        tracehook.disable()
        tell(statuses=[in_child(use_cuda)])
    elif way == "ranks":
        child = os.fork()
        share_a_scope(1 if child == 0 else 0)
        if child:
            tell(statuses=[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
    elif way == "spawn":
        start()
        process = multiprocessing.get_context("spawn").Process(target=spawned)
        process.start()
        process.join()
        tell(statuses=[process.exitcode])
        dist.destroy_process_group()
    elif way == "scopes":
        in_scopes()
    else:
        tell(statuses=[in_child(use_cuda if way == "before" else enable_and_use_cuda)])
        use_cuda(24, tell)
