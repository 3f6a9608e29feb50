"""The last rank never comes to a collective; the others are left to torch's watchdog."""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from common import MB, RANK, WORLD, filled, start, tell

device = start()
tensor = filled(RANK + 1, 24, device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if RANK == WORLD - 1:
    threading.Event().wait(9)
    tell(end="waited in vain")
    raise SystemExit(0)
tensor = torch.empty(48 * MB, dtype=torch.uint8, device=device)
tell(last=tensor.untyped_storage().nbytes())
# Only now: on a busy machine a rank may come late to what all take part in.
dist.group.WORLD.set_timeout(timedelta(seconds=3))
work = dist.all_reduce(tensor, async_op=True)
try:
    work.wait()
    torch.cuda.synchronize()
    tell(end="came back")
except RuntimeError as problem:
    tell(end=str(problem))
# What a program does that cleans up after a timeout.
del tensor, work
torch.cuda.empty_cache()
tensor = torch.empty(64 * MB, dtype=torch.uint8, device=device)
tell(after="allocated")
if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "1":
    threading.Event().wait(20)  # the watchdog ends the process
