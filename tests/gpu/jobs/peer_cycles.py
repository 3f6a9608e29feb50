"""Peers that meet, map memory and part, again and again: what the process has mapped and open after each time."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

import tracehook
from tracehook.ipc import PeerGroup

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
peers = [peer for peer in range(ranks) if peer != rank]
plain = torch.full((8 << 20,), float(rank), device=device)
with tracehook.symmetric():
    pooled = torch.full((4 << 20,), float(rank), device=device)
counts = []
for _ in range(5):
    torch.cuda.synchronize()
    dist.barrier()
    with PeerGroup() as group:
        theirs = group.exchange({peer: [plain, pooled] for peer in peers})
        shared = [found for found in theirs.values() if isinstance(found, list)]
        got = [[view.get()[-1].item() for view in views] for views in shared]
        dist.barrier()
    del theirs, shared
    torch.cuda.synchronize()
    dist.barrier()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    counts.append([maps, len(list(Path("/proc/self/fd").iterdir()))])
os.write(1, f"fact {rank} {json.dumps({'counts': counts, 'got': got})}\n".encode())  # one line, whole
dist.destroy_process_group()
