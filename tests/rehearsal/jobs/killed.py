"""The last rank is killed without warning, right after an allocation; the others wait for it."""

import os
import signal

import torch
import torch.distributed as dist
from tracehook.hook.service import service

from common import MB, RANK, WORLD, filled, start, tell

device = start()
tensor = filled(RANK + 1, 24, device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if RANK == WORLD - 1:
    journal = service()._journal
    assert journal is not None
    journal.stop_thread()  # so that the ring alone has what comes now
    last = [torch.empty(size * MB, dtype=torch.uint8, device=device) for size in (48, 50, 52)]
    tell(sizes=[part.untyped_storage().nbytes() for part in last], pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
tell(pid=os.getpid())
dist.all_reduce(tensor)
torch.cuda.synchronize()
