"""A segment that comes or goes on one thread while another is in a slow call of NCCL, by fault. Argument: the case."""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import MB, beside, filled, nccl_calls, raised, start, tell, until


def segment() -> torch.Tensor:
    """Return memory of 48 MiB that nobody fills."""
    return torch.empty(48 * MB, dtype=torch.uint8, device="cuda:0")


def born() -> None:
    """One is born while the first registration with a new communicator is under way."""
    early = filled(1, 24, "cuda:0")
    late: list[torch.Tensor] = []

    def allocate() -> None:
        until(lambda: nccl_calls("ncclCommRegister") > 0)
        late.append(segment())
        tell(calls_at_birth=nccl_calls("ncclCommRegister"))

    with beside(allocate):
        start()
    dist.all_reduce(early)
    tell(registered=nccl_calls("ncclCommRegister"))
    late.clear()
    tell(empty_cache=raised(torch.cuda.empty_cache))


def freed() -> None:
    """One is born and freed while a non-blocking communicator is still in progress."""
    early = filled(1, 24, "cuda:0")

    def come_and_go() -> None:
        until(lambda: nccl_calls("ncclCommInitRankConfig") > 0)
        segment()
        torch.cuda.empty_cache()
        tell(ready=[row["ready"] for row in tracehook.status()["communicators"]])

    with beside(come_and_go):
        start()
    dist.all_reduce(early)
    tell(held=[row["held"] for row in tracehook.status()["communicators"]])


def freed_during_an_abort() -> None:
    """One is freed while the communicator that holds it is aborted."""
    device = start()
    kept, held = filled(1, 24, device), [segment()]
    doomed = dist.new_group([0])
    dist.all_reduce(kept, group=doomed)

    def free() -> None:
        until(lambda: nccl_calls("ncclCommAbort") > 0)
        held.clear()
        torch.cuda.empty_cache()
        tell(freed=True)

    with beside(free):
        doomed._get_backend(device).abort()
    dist.all_reduce(kept)


torch.cuda.init()
globals()[sys.argv[1]]()
dist.destroy_process_group()
