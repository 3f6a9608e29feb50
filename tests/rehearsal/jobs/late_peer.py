"""Rank 1 comes late to a collective; rank 0 meanwhile lets go of what the collective uses. late_peer.py HOW."""

import sys
import time

import torch
import torch.distributed as dist
import tracehook

from common import RANK, captured_beside, filled, start, tell

LATE = 0.5  # seconds, after rank 0 has seen that the collective is under way


def free() -> None:
    """Give the memory of x back, and tell whether all of it went."""
    global x
    del x
    torch.cuda.empty_cache()
    tell(left=torch.cuda.memory_reserved())


device = start()
how = sys.argv[1]
if how == "alone" and RANK == 1:
    tracehook.disable()
store = dist.distributed_c10d._get_default_store()
x = filled(1.0, 32, device)
dist.all_reduce(x)
torch.cuda.synchronize()
if RANK == 1:
    store.wait(["under way"])
    time.sleep(LATE)
work = dist.all_reduce(x, async_op=True)
work.wait()
del work  # it has x too
over = torch.cuda.Event()
over.record()
if RANK == 0:
    tell(ran=not over.query())
    store.set("under way", "")
    if how == "free":
        free()
    elif how == "capture":
        with captured_beside(device):
            free()
if how == "off":
    tracehook.disable()
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
tell(end="reached")
