"""Segments before, between and after two communicators, memory given back, and a look at the status."""

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, filled, nccl_calls, start, tell

torch.cuda.init()
early = filled(1, 24, "cuda:0") if WORLD == 1 else None
device = start()
tensor = filled(RANK + 1, 24, device)
dist.all_reduce(tensor)
second = dist.new_group(list(range(WORLD)))
dist.all_reduce(tensor, group=second)
tell(sum=tensor.cpu()[0].item())
other = filled(1, 48, device)
dist.all_reduce(other, group=second)
tell(status=tracehook.status(), registered=nccl_calls("ncclCommRegister"))
del other
torch.cuda.empty_cache()
tracehook.enable()  # a second time, for those that are on already
dist.all_reduce(tensor)
tell(state_then=tracehook.status()["state"])
dist.destroy_process_group()
tell(end="reached", undone=nccl_calls("ncclCommDeregister"))
