"""Somebody sets the clock of rank 1, which then computes for ever. Argument: by how many seconds."""

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from common import RANK, start, started

device = start(600)
tensor = torch.ones(4, device=device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
started()
if RANK == 1:
    Path(f"{os.environ['TEST_CLOCK']}.1").write_text(sys.argv[1])
    threading.Event().wait()
dist.all_reduce(tensor)
torch.cuda.synchronize()
