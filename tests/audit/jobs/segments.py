"""Segments that come and go beside communicators that do; the first argument says how. For cores with a bug."""

import sys

import torch
import torch.distributed as dist
import tracehook
from common import RANK, WORLD, filled, start
from symmetric_tools import reduced, symmetric


def come_and_go() -> None:
    device = start()
    dist.all_reduce(filled(1, 24, device))
    for size in (48, 48, 60):
        dist.all_reduce(filled(1, size, device))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    dist.all_reduce(filled(1, 2, device))
    dist.destroy_process_group()


def kept() -> None:
    device = start()
    tensors = [filled(1, size, device) for size in (24, 48, 60, 72)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.destroy_process_group()


def elsewhere() -> None:
    """Each rank has memory on the device of the other one, too."""
    device = start()
    kept = [filled(1, 24, device), filled(1, 48, f"cuda:{1 - RANK}")]
    dist.all_reduce(kept[0])
    dist.destroy_process_group()


def switched() -> None:
    """As if nothing had been: no segment and no communicator in the time without registration."""
    device = start()
    kept = [filled(1, size, device) for size in (24, 48)]
    dist.all_reduce(kept[0])
    tracehook.disable()
    tracehook.enable()
    dist.all_reduce(kept[1])
    dist.destroy_process_group()


def aborted() -> None:
    device = start()
    group = dist.new_group(list(range(WORLD)), device_id=device)
    kept = filled(1, 24, device)
    dist.all_reduce(kept, group=group)
    torch.cuda.synchronize()
    group._get_backend(device).abort()
    kept = filled(1, 48, device)
    dist.all_reduce(kept)
    dist.destroy_process_group(dist.group.WORLD)


def adopted() -> None:
    """Segments first, tracehook afterwards."""
    device = start()
    kept = [filled(1, size, device) for size in (24, 48, 60)]
    tracehook.enable()
    dist.new_group(list(range(WORLD)), device_id=device)
    dist.all_reduce(kept[0])
    kept.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    dist.destroy_process_group()


def pooled() -> None:
    """Symmetric memory that nothing uses any more."""
    start()
    tensor = symmetric(RANK + 1)
    reduced(tensor)
    del tensor
    tracehook.trim()
    dist.destroy_process_group()


globals()[sys.argv[1]]()
