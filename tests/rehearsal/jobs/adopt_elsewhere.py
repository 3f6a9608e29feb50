"""tracehook enabled while the current device is not the one of the group."""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import filled, tell

torch.cuda.set_device(1)
kind = sys.argv[1]
if kind == "bound":
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 1))
else:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
tensors = [filled(1, 24, "cuda:1")]
dist.all_reduce(tensors[0])
if kind == "both":
    tensors.append(filled(1, 24, "cuda:0"))
    dist.all_reduce(tensors[1])
else:
    tensors.append(torch.empty(1 << 25, device="cuda:0"))
torch.cuda.set_device(0)
tracehook.enable()
tell(status=tracehook.status())
dist.all_reduce(tensors[0])
dist.destroy_process_group()
