"""Ranks that train on what workers of a data loader read. Argument: what becomes of the worker of rank 1."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from common import RANK, start, started

FAULT = sys.argv[1]


class Numbers(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is Any to mypy
    """One tensor an item."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        if RANK == 1 and number == 4:
            started()
            match FAULT:
                case "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stuck":
                    time.sleep(600)
        return torch.full((4,), float(number))


def train() -> None:
    for batch in DataLoader(Numbers(), num_workers=1, prefetch_factor=1):
        dist.all_reduce(batch.to(device))
        torch.cuda.synchronize()


device = start(600)
dist.all_reduce(torch.ones(4, device=device))
if RANK != 1:
    started()
train()
dist.destroy_process_group()
