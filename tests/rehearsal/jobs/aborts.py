"""A rank skips a collective; all abort their groups while the others wait, and go on.

Arguments: seconds until then; leave, if they end by os._exit.
"""

import os
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
if "leave" in sys.argv:
    os._exit(0)
del tensor
