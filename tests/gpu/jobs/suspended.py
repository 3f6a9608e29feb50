"""A communicator with a window, a registered segment and captured graphs is suspended and resumed.

The first argument says by whom: `call` (the program calls NCCL), `pause` (tracehook does). `used` uses it meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch
import torch.distributed as dist

import tracehook
from tracehook.hook import groups

MB = 1 << 20
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SUSPEND_MEMORY = 1
SIZE = 64 * MB // 4  # elements
HAS_HOOK = os.environ.get("SYMM_REGISTER_HOOK") == "1"

how = sys.argv[1]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
dist.all_reduce(torch.ones(1, device=device))
group = dist.distributed_c10d._get_default_group()
communicator = ctypes.c_void_p(groups.pointer_of(group))
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclCommSuspend.argtypes = [ctypes.c_void_p, ctypes.c_int]
nccl.ncclCommResume.argtypes = [ctypes.c_void_p]


def say(**facts: object) -> None:
    """Print facts."""
    line = " ".join([f"rank={RANK}", *(f"{name}={value}" for name, value in facts.items())])
    os.write(1, f"{line}\n".encode())  # whole: ranks print beside each other


def free() -> int:
    """Return the MiB of the device that are free."""
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0] // MB)


def told() -> dict[str, object]:
    """Return what tracehook says of the communicator."""
    if not HAS_HOOK:
        return {}
    status = tracehook.status()
    row = next(one for one in status["communicators"] if one["pointer"] == communicator.value)
    windows = sum(pool["windows"] for pool in status["windows"])
    return {"suspended": row["suspended"], "held": row["held"], "windows": windows}


def made(symmetric: bool) -> torch.Tensor:
    """Return a tensor with a segment of its own."""
    if symmetric and HAS_HOOK:
        with tracehook.symmetric():
            return torch.empty(SIZE, device=device)
    return torch.empty(SIZE, device=device)


graph = torch.cuda.CUDAGraph()
ordinary, symmetric = made(False), made(True)
whole = torch.empty(WORLD * SIZE, device=device)


def exchange() -> None:
    """Gather from an ordinary tensor, sum in a symmetric one."""
    dist.all_gather_into_tensor(whole, ordinary)
    dist.all_reduce(symmetric)


def wrong(act: str) -> int:
    """Return how many results of one exchange are wrong: eager, or of the graph."""
    ordinary.fill_(RANK + 1.0)
    symmetric.fill_(RANK + 1.0)
    whole.zero_()
    exchange() if act == "eager" else graph.replay()
    torch.cuda.synchronize()
    gathered = [whole[rank * SIZE :][place].item() for rank in range(WORLD) for place in (0, SIZE - 1)]
    expected = [rank + 1.0 for rank in range(WORLD) for _ in (0, SIZE - 1)]
    sums = [symmetric[place].item() for place in (0, SIZE - 1)]
    return int(
        sum(a != b for a, b in zip(gathered, expected, strict=True)) + sum(x != sum(range(WORLD + 1)) for x in sums)
    )


def suspend() -> None:
    """Let it sleep."""
    if how == "pause":
        tracehook.pause()
        return
    torch.cuda.synchronize()
    if status := nccl.ncclCommSuspend(communicator, SUSPEND_MEMORY):
        raise SystemExit(f"ncclCommSuspend said {status}")


def resume() -> None:
    """Wake it up."""
    if how == "pause":
        tracehook.resume()
    elif status := nccl.ncclCommResume(communicator):
        raise SystemExit(f"ncclCommResume said {status}")


failures = wrong("eager")
with torch.cuda.graph(graph):
    exchange()
failures += wrong("replay")
say(**{f"{name}_before": value for name, value in told().items()})
for cycle in range(3):
    awake = free()
    suspend()
    asleep = free()
    say(cycle=cycle, awake=awake, asleep=asleep, **told())
    if how == "used":
        try:
            dist.all_reduce(ordinary)
            torch.cuda.synchronize()
            say(outcome="nothing")
        except Exception as problem:  # what it says is what this job is about
            say(outcome=type(problem).__name__, words="_".join(str(problem).split()))
    resume()
    say(again=free())
    failures += wrong("eager") + wrong("replay")
say(wrong=failures, **{f"{name}_after": value for name, value in told().items()})
graph.reset()
dist.destroy_process_group()
