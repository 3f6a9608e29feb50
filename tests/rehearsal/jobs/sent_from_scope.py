"""A tensor of a scope is sent, and broadcast, to a rank whose buffer is ordinary memory."""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, filled, start, tell

SIZE = int(sys.argv[1])

device = start()
with tracehook.symmetric():
    source = torch.empty(SIZE * MB // 4, device=device)
source.copy_(filled(3, SIZE, device))
target = torch.zeros(SIZE * MB // 4, device=device)
if RANK == 0:
    dist.send(source, 1)
elif RANK == 1:
    dist.recv(target, 0)
    tell(received=target.cpu()[[0, -1]].tolist())
    target.zero_()
dist.broadcast(source if RANK == 0 else target, 0)
if RANK == 1:
    tell(broadcast=target.cpu()[[0, -1]].tolist())
dist.destroy_process_group()
