"""A process that forks: with CUDA up in the parent, or before."""

import atexit
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
import tracehook

from common import MB, calls, filled, nccl_calls, start, tell


def child_says(**facts: object) -> None:
    os.write(1, f"fact 99 {json.dumps(facts)}\n".encode())


def in_child(act: Callable[[], object]) -> int:
    """Fork, run `act` in the child, and return the child's exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            atexit._run_exitfuncs()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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


def use_cuda(size: int = 48) -> None:
    device = start()
    tensor = filled(1, size, device)
    dist.all_reduce(tensor)
    status = tracehook.status()
    child_says(
        pid=os.getpid(), state=status["state"], log=status["log"], held=[c["held"] for c in status["communicators"]]
    )
    dist.destroy_process_group()


def enable_and_use_cuda() -> None:
    child_says(state_before=tracehook.status()["state"])
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
    else:
        tell(statuses=[in_child(use_cuda if way == "before" else enable_and_use_cuda)])
        device = start()
        kept = filled(1, 24, device)
        dist.all_reduce(kept)
        status = tracehook.status()
        tell(
            pid=os.getpid(), state=status["state"], log=status["log"], held=[c["held"] for c in status["communicators"]]
        )
        dist.destroy_process_group()
