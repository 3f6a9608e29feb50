"""A tensor of a scope is exchanged for one of ordinary memory: as what is sent, or as what is received."""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, filled, start, tell

SIZE, WHAT = int(sys.argv[1]), sys.argv[2]

device = start()
count = SIZE * MB // 4
with tracehook.symmetric():
    ours = torch.empty(count, device=device)
ordinary = torch.empty(count, device=device)
source, target = (ours, ordinary) if WHAT == "sent" else (ordinary, ours)
source.copy_(torch.cat([filled(10 * RANK + part, SIZE / WORLD, "cpu") for part in range(WORLD)]))
dist.all_to_all_single(target, source)
tell(received=[float(target[part * count // WORLD].cpu()) for part in range(WORLD)])
dist.destroy_process_group()
