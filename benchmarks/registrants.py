"""What calls take with the registrations of torch's hook, of torch's group nccl2, of tracehook, or with none.

    torchrun --standalone --nproc-per-node 2 benchmarks/registrants.py

The environment chooses who registers, so each run has one of them; start the runs in turn, and compare their lines:

    none         TORCH_DIST_USE_NCCL2=0
    torch        TORCH_DIST_USE_NCCL2=0 TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1
    nccl2        TORCH_DIST_USE_NCCL2=1, with torch 2.15
    tracehook    either group, SYMM_REGISTER_HOOK=1 SYMM_REGISTER_MEMORY=vmm

A line of JSON has microseconds of an eager call on the slowest rank, the median of nine rows of calls, by call and MiB
of its larger buffer.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = (4, 32, 256)  # MiB
ROWS = 9


def microseconds(call: Callable[[], object], count: int) -> float:
    """Return the time of one call, on the slowest rank."""
    for _ in range(5):
        call()
    times = []
    for _ in range(ROWS):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin) / count)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return round(slowest.item(), 1)


def calls(mib: int) -> dict[str, Callable[[], object]]:
    """Return the calls on buffers of that size, bf16."""
    large = torch.ones(mib << 19, dtype=torch.bfloat16, device="cuda")
    other, part = torch.ones_like(large), torch.ones(mib << 18, dtype=torch.bfloat16, device="cuda")
    peer = 1 - dist.get_rank()

    def send() -> None:
        both = [dist.P2POp(dist.isend, other, peer), dist.P2POp(dist.irecv, large, peer)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return {
        "all_gather": lambda: dist.all_gather_into_tensor(large, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, large),
        "all_reduce": lambda: dist.all_reduce(large),
        "all_to_all": lambda: dist.all_to_all_single(large, other),
        "send": send,
    }


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    os.sched_setaffinity(0, cores[local * half : (local + 1) * half] or cores)  # no rank takes time from the other
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    found = {
        f"{name} {mib}": microseconds(call, 200 if mib <= 4 else 30)
        for mib in SIZES
        for name, call in calls(mib).items()
    }
    if dist.get_rank() == 0:
        print(json.dumps({"torch": torch.__version__} | found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
