"""Somebody sets the clock of rank 1, which then computes for ever. Argument: by how many seconds."""

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from common import RANK, start

device = start(600)
tensor = torch.ones(4, device=device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
Path(os.environ["TEST_STORE"]).with_name(f"started {RANK}").touch()
if RANK == 1:
    Path(f"{os.environ['TEST_CLOCK']}.1").write_text(sys.argv[1])
    threading.Event().wait()
dist.all_reduce(tensor)
torch.cuda.synchronize()
