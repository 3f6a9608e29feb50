"""tracehook comes after CUDA is up, on all ranks or on rank 0 alone; then a large gather."""

import os
import sys

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", RANK)
if sys.argv[1] == "all" or RANK == 0:
    torch.cuda.set_device(device)
    torch.cuda.init()
import tracehook  # noqa: E402

tracehook.enable()
from common import filled, start, tell  # noqa: E402

start()
gathered = torch.zeros(WORLD * 24 * (1 << 20) // 4, device=device)
dist.all_gather_into_tensor(gathered, filled(RANK + 1, 24, device))
tell(source=tracehook.status()["memory"]["source"], gathered=gathered[:: len(gathered) // WORLD].tolist())
dist.destroy_process_group()
