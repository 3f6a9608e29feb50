"""Default groups of some of the processes follow each other, as where a job replaces a rank that failed."""

import os

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, tell
from symmetric_tools import empty, reduced, refill

MEMBERS = {2: [(0,), (0, 1), (1,), (0, 1)], 3: [(0, 1), (1, 2), (0, 2), (0, 1, 2)]}  # by number of processes
SIZES = ((3, 30, 8, 12), (30, 12, 8, 3), (8, 3, 30, 12), (12, 30, 3, 8))  # MiB

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
control = dist.FileStore(os.environ["TEST_STORE"], WORLD)
told: list[bool] = []
for number, members in enumerate(MEMBERS[WORLD]):
    if RANK in members:
        rank, ranks = members.index(RANK), len(members)
        store = dist.PrefixStore(str(number), control)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, device_id=device)
        for size in SIZES[number]:
            with tracehook.symmetric():
                made = empty(size), empty(4096 / MB)
            told += [reduced(refill(tensor, rank + 1)) == ranks * (ranks + 1) / 2 for tensor in made]
            del made
        dist.barrier()
        dist.destroy_process_group()
tell(sums=told)
control.set(f"end {RANK}", "")
control.wait([f"end {rank}" for rank in range(WORLD)])
