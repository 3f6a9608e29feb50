"""Communicators of a server that sleeps, which the program suspends itself, or tracehook.pause(): test_suspended.py."""

import ctypes
import random
import sys
from collections.abc import Callable
from ctypes import c_int, c_void_p

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import groups

from common import MB, RANK, WORLD, filled, nccl_calls, raised, start, tell

MEMORY = 1  # NCCL_SUSPEND_MEM
device = start(waits=True)
dist.all_reduce(filled(1, 1, device))  # torch makes the communicator
group = dist.distributed_c10d._get_default_group()
communicator = c_void_p(groups.pointer_of(group))
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclCommSuspend.argtypes = [c_void_p, c_int]
nccl.ncclCommResume.argtypes = [c_void_p]
wrong: list[str] = []


def reduced(tensor: torch.Tensor) -> float:
    """Sum the ranks, counted from 1, in the tensor; return what is in its last element."""
    tensor.copy_(torch.full((tensor.numel(),), float(RANK + 1)))
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return float(tensor.cpu()[-1])


def check(tensors: list[torch.Tensor], where: str) -> None:
    """Note sums that are not those of all ranks."""
    expected = WORLD * (WORLD + 1) / 2
    wrong.extend(f"{where}: {found}" for tensor in tensors if (found := reduced(tensor)) != expected)


def made(symmetric: bool) -> torch.Tensor:
    """Return a tensor that has a segment of its own."""
    if not symmetric:
        return torch.empty(24 * MB // 4, device=device)
    with tracehook.symmetric():
        return torch.empty(24 * MB // 4, device=device)


def row() -> dict[str, object]:
    """Return what status says of the communicator."""
    return dict(next(one for one in tracehook.status()["communicators"] if one["pointer"] == communicator.value))


def random_program(seed: int, steps: int) -> None:
    """Allocate, free, communicate, suspend and resume in any order that the communicator allows."""
    draw = random.Random(seed)  # alike on all ranks
    held = [made(symmetric) for symmetric in (True, False)]
    registrations_meanwhile, suspensions, born, asleep = 0, 0, 0, False
    check(held, "before")
    for step in range(steps):
        registrations = nccl_calls("ncclCommRegister") + nccl_calls("ncclCommWindowRegister")
        act = draw.choice(["free", "ordinary", "ordinary", "suspend" if not asleep else "resume", "work"])
        if act == "free" and len(held) > 1:
            held.pop(draw.randrange(len(held)))
            torch.cuda.empty_cache()
        elif act == "ordinary":
            held.append(made(False))
            born += asleep
        elif act == "work" and not asleep:
            held.append(made(True))
            check(held, f"step {step}")
        if asleep:
            found = nccl_calls("ncclCommRegister") + nccl_calls("ncclCommWindowRegister")
            registrations_meanwhile += found - registrations
        if act == "suspend":
            status = nccl.ncclCommSuspend(communicator, MEMORY)
            asleep, suspensions = True, suspensions + 1
            wrong.extend([f"suspend said {status}"] if status else [])
        elif act == "resume":
            status = nccl.ncclCommResume(communicator)
            asleep = False
            wrong.extend([f"resume said {status}"] if status else [])
            check(held, f"after the resume of step {step}")
    if asleep:
        nccl.ncclCommResume(communicator)
    check(held, "at the end")
    tell(wrong=wrong, meanwhile=registrations_meanwhile, suspensions=suspensions, born=born)
    tell(held=row()["held"], segments=tracehook.status()["segments"])


def coalesced(*tensors: torch.Tensor) -> None:
    """Sum the ranks in one group of NCCL."""
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)


def used() -> None:
    """Use a communicator that is suspended."""
    symmetric, ordinary = made(True), made(False)
    check([symmetric, ordinary], "before")
    assert nccl.ncclCommSuspend(communicator, MEMORY) == 0
    acts: dict[str, Callable[[], object]] = {
        "window": lambda: dist.all_reduce(symmetric),
        "ordinary": lambda: dist.all_reduce(ordinary),
        "broadcast": lambda: dist.broadcast(ordinary, 0),
        "send": lambda: dist.send(ordinary, 1) if RANK == 0 else dist.recv(ordinary, 0),
        "coalesced": lambda: coalesced(ordinary, symmetric),
        "scope": lambda: made(True),
        "sync": tracehook.sync,
        "trim": tracehook.trim,
    }
    tell(said={name: raised(act) for name, act in acts.items()}, asleep=row()["suspended"])
    assert nccl.ncclCommResume(communicator) == 0
    check([symmetric, ordinary, made(True)], "after")
    tell(wrong=wrong, awake=row()["suspended"])


def flagless() -> None:
    """Suspend without the flag that gives memory back: NCCL does nothing then."""
    assert nccl.ncclCommSuspend(communicator, 0) == 0
    tell(asleep=row()["suspended"])
    check([made(True)], "after")
    tell(wrong=wrong)


def paused() -> None:
    """Pause and resume by tracehook, twice each."""
    kept, gone = made(True), made(True)
    check([kept, gone], "before")
    del gone
    before = torch.cuda.mem_get_info()[0]
    gave_back = tracehook.pause()
    gained = torch.cuda.mem_get_info()[0] - before
    memory, again = row()["memory"], tracehook.pause()
    late = made(False)
    asleep = row()["suspended"]
    resumed = tracehook.resume()
    tell(gave_back=gave_back, gained=gained, asleep=asleep, again=again, awake=row()["suspended"], memory=memory)
    tell(resumed=resumed, twice=tracehook.resume())
    check([kept, late, made(True)], "after")
    tell(wrong=wrong, windows=tracehook.status()["windows"][0]["windows"])


def alone() -> None:
    """Pause on one rank: the other one goes on and waits for a window."""
    check([made(True)], "before")
    tell(said=raised(tracehook.pause if RANK == 0 else tracehook.sync), asleep=row()["suspended"])
    check([made(True)], "after")
    tell(wrong=wrong)


def graph() -> None:
    """Replay after the resume what was captured before the suspend."""
    held = [made(True), made(False)]
    check(held, "before")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for tensor in held:
            dist.all_reduce(tensor)
    tracehook.pause()
    tracehook.resume()
    for tensor in held:
        tensor.copy_(torch.full((tensor.numel(),), float(RANK + 1)))
    captured.replay()
    torch.cuda.synchronize()
    tell(replayed=[float(tensor.cpu()[-1]) for tensor in held], windows=tracehook.status()["windows"][0]["pinned"])
    captured.reset()
    tracehook.release_graphs()
    tell(wrong=wrong)


CASES = {"graph": graph, "used": used, "flagless": flagless, "paused": paused, "alone": alone}
if sys.argv[1] in CASES:
    CASES[sys.argv[1]]()
else:
    random_program(int(sys.argv[1]), int(sys.argv[2]))
dist.destroy_process_group()
