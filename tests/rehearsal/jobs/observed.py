"""Segments and groups that come and go, and how often NCCL was called. Arguments: a backend, and when to enable."""

import os
import sys

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, filled, nccl_calls, start, tell

BACKEND, WHEN = sys.argv[1:3]

if WHEN == "first":
    tracehook.enable()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
torch.cuda.set_device(device)
early = filled(1, 30, device)
start(backend=BACKEND)
if WHEN == "late":
    tracehook.enable()
before = nccl_calls("ncclCommRegister")
born = filled(2, 40, device)
ones = filled(1, 0.01, device)
dist.all_reduce(ones)
group = dist.new_group(list(range(WORLD)), device_id=device)
dist.all_reduce(ones, group=group)
del born
torch.cuda.empty_cache()
again = filled(3, 50, device)
rows = tracehook.status()["communicators"]
tell(kinds=sorted(row["local"] for row in rows), held=[row["held"] for row in rows], sum=ones.cpu()[0].item())
dist.destroy_process_group(group)
del again
torch.cuda.empty_cache()
with tracehook.symmetric():
    inside = torch.empty(1 << 20, device=device)
inside.copy_(filled(RANK, 4, device))
dist.all_reduce(inside)
tell(symmetric=tracehook.is_symmetric(inside), reduced=inside.cpu()[0].item())
torch.cuda.synchronize()
dist.destroy_process_group()
after = filled(4, 60, device)
del after
torch.cuda.empty_cache()
made, undone = nccl_calls("ncclCommRegister"), nccl_calls("ncclCommDeregister")
# Before 2.29.2 tracehook asks with each window, by a local registration that it takes back, whether it is a true one.
windows = nccl_calls("ncclCommWindowRegister") if tracehook.status()["nccl"] < 22902 else 0
tell(made=made - windows, undone=undone - windows, before=before, end="reached")
