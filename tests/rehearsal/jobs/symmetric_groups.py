"""All three symmetric collectives on two groups, over one shared pool or isolated ones; also run on real devices.

Arguments: `profile` looks for NCCL's symmetric kernels by name.
"""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, start, tell

COUNT = 8 << 20  # elements of float32 on each rank; 32 MiB

device = start()
# A group of all, and pairs of neighbours (tensor parallel); two ranks are one pair.
pairs = [
    dist.new_group([first, first + 1], device_id=device, use_local_synchronization=False)
    for first in range(0, WORLD, 2)
]
pair = pairs[RANK // 2]


def fill(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Fill by copying: kernels do nothing on emulated devices."""
    tensor.copy_(torch.full(tensor.shape, float(value)))
    return tensor


def made(count: int, group: dist.ProcessGroup) -> torch.Tensor:
    with tracehook.symmetric(group):
        return torch.empty(count, device=device)


def same(tensor: torch.Tensor) -> float | None:
    """Return the one value of all elements, None if they differ."""
    values = tensor.cpu()
    return float(values[0]) if bool((values == values[0]).all()) else None


def run(group: dist.ProcessGroup) -> dict[str, object]:
    """Return results and whether all buffers were symmetric."""
    ranks, own = dist.get_world_size(group), dist.get_rank(group)
    whole, part, out = made(COUNT * ranks, group), made(COUNT, group), made(COUNT, group)
    symmetric = all(tracehook.is_symmetric(tensor, group) for tensor in (whole, part, out))
    results: dict[str, object] = {"symmetric": symmetric}
    dist.all_reduce(fill(out, own + 1), group=group)
    results["all_reduce"] = same(out)
    dist.all_gather_into_tensor(whole, fill(part, own + 1), group=group)
    results["all_gather"] = [same(chunk) for chunk in whole.chunk(ranks)]
    for index, chunk in enumerate(whole.chunk(ranks)):
        fill(chunk, 10 * index + own)
    dist.reduce_scatter_tensor(out, whole, group=group)
    results["reduce_scatter"] = same(out)
    return results


for name, group in (("world", dist.group.WORLD), ("pair", pair)):
    tell(**{name: run(group)})
tell(windows={row["group"]: row["windows"] for row in tracehook.status()["windows"]})
tell(pools=sorted(row["pool"].split()[0] for row in tracehook.status()["pools"]))

if "profile" in sys.argv:
    from torch.profiler import ProfilerActivity, profile

    small = fill(made(2048, dist.group.WORLD), RANK + 1)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        dist.all_reduce(small)
        run(dist.group.WORLD)
        torch.cuda.synchronize()
    kernels = sorted({event.name for event in profiler.events() if "nccl" in event.name.lower()})
    tell(kernels=kernels)
torch.cuda.synchronize()
dist.destroy_process_group()
