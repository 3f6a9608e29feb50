"""A rank skips a collective; all abort their groups while the others wait, and go on. Argument: seconds until then."""

import sys
import threading

import torch
import torch.distributed as dist

from common import RANK, start

device = start()
tensor = torch.ones(1024, device=device)
for _ in range(3):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
if RANK != 1:
    dist.all_reduce(tensor)
threading.Event().wait(float(sys.argv[1]))
dist.distributed_c10d._abort_process_group()
del tensor
