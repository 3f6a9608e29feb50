"""What registered segments cost a small collective: NCCL searches the registrations of a communicator one by one.

``SYMM_REGISTER_HOOK=1 torchrun --standalone --nproc-per-node 2 benchmarks/segment_count.py``, with
``tracehook rehearse --devices 2 --`` in front where there is no GPU; then again with
``SYMM_REGISTER_SEGMENTS=from-20MiB``. An all_reduce of 8 KiB with tracehook switched off and on in turn, in one
process, on a device with more and more segments: three of four have 2 MiB, as PyTorch's small ones do, the fourth 20
MiB. NCCL's search begins at the lowest address and ends at the buffer's, so the buffer is the lowest, then the
highest. A value is the slowest rank's mean of a loop of calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import stats
import torch
import torch.distributed as dist

import tracehook

COUNTS = (250, 1000, 2000, 4000)  # segments
CALLS = 300  # of a loop
REPETITIONS = 11
MB = 1 << 20


def loop(tensor: torch.Tensor) -> float:
    """Return the microseconds of a call, the slowest rank's."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    mine = (time.perf_counter() - begin) / CALLS * 1e6
    told: list[float | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return max(each for each in told if each is not None)


def grow(kept: list[torch.Tensor], segments: int, device: torch.device) -> None:
    """Keep allocations until the device has so many segments."""
    while (missing := segments - tracehook.status()["segments"]) > 0:
        for _ in range(-(-missing // 4)):
            kept += [torch.zeros(size, dtype=torch.uint8, device=device) for size in (*6 * [MB], 20 * MB)]


def registered() -> int:
    """Return the registrations of the default group's communicator."""
    return max(int(each["held"]) for each in tracehook.status()["communicators"])


def measure(tensor: torch.Tensor) -> tuple[Sequence[float], Sequence[float], int]:
    """Return the microseconds of a call without and with registrations, and how many these are."""
    off, on = [], []
    held = 0
    for _ in range(REPETITIONS):
        tracehook.disable()
        off.append(loop(tensor))
        tracehook.enable()
        on.append(loop(tensor))
        held = registered()
    return off, on, held


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    for _ in range(CALLS):
        dist.all_reduce(torch.zeros(2048, device=device))
    kept: list[torch.Tensor] = []
    for count in COUNTS:
        grow(kept, count, device)
        kept.sort(key=torch.Tensor.data_ptr)
        for where, buffer in (("lowest", kept[0]), ("highest", kept[-1])):
            off, on, held = measure(buffer.view(torch.float32)[:2048])
            if dist.get_rank() == 0:
                print(
                    f"{tracehook.status()['segments']} segments, {held} registered, the buffer at the {where} address:"
                )
                print(stats.describe("  8 KiB all_reduce, without registrations", off, "us"))
                print(stats.describe("  with - without", [a - b for a, b in zip(on, off, strict=True)], "us"))
                print(
                    stats.describe("  with / without", [a / b for a, b in zip(on, off, strict=True)], "x"), flush=True
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
