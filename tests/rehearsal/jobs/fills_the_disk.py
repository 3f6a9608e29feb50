"""Rank 1 saves until the disk is full, and raises. Argument: where."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
import tracehook._core

from common import RANK, start


def save() -> None:
    with Path(sys.argv[1], "checkpoint").open("wb") as file:
        while True:
            file.write(bytes(1 << 16))


device = start()
dist.all_reduce(torch.ones(4, device=device))
torch.cuda.synchronize()
tracehook.status()
if RANK == 1:
    try:
        save()
    except OSError:
        for _ in range(200):
            tracehook._core.push("hook.enable", segments=0, bytes=0)
        tracehook.status()
        raise
dist.barrier()
for _ in range(100):
    with tracehook.symmetric():
        tensor = torch.ones(4, device=device)
    dist.all_reduce(tensor)
torch.cuda.synchronize()
tracehook.status()
dist.destroy_process_group()
