"""Ranks with windows, whose metrics are looked at: they end in order, or disagree."""

import os
import sys

import torch
import torch.distributed as dist
import tracehook
from tracehook.metrics.follow import follow
from tracehook.metrics.table import COMMON

from common import MB, RANK, start, tell


def own(name: str) -> dict[str, float]:
    """Return one metric of this process, by its own label: kind or about."""
    tracehook.status()  # waits until all events are taken
    return {labels[len(COMMON)]: value for labels, value in FOLLOWED.series()[name]}


FOLLOWED = follow()
device = start()
size = 32 * MB * (2 if sys.argv[1] == "mismatch" and RANK == 0 else 1)
try:
    with tracehook.symmetric(dist.group.WORLD):
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
    dist.all_reduce(tensor)
except tracehook.RegistrationError as problem:
    tell(error=type(problem).__name__)
torch.cuda.synchronize()
tell(disagreed=own("tracehook_ranks_disagreed_total"), pid=os.getpid())
dist.destroy_process_group()
