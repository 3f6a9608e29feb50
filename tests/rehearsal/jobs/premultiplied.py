"""Reductions with operators of the program, whose numbers NCCL makes up on each rank for itself."""

import torch
import torch.distributed as dist

from common import RANK, filled, start, tell

device = start()
tensor = filled(RANK + 1, 1, device)
sums = []
for factor in (2.0, 0.5, 4.0):
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
    sums.append(tensor.cpu()[0].item())
whole = torch.ones(4 << 10, device=device)
part = torch.empty(len(whole) // dist.get_world_size(), device=device)
dist.reduce_scatter_tensor(part, whole, op=dist._make_nccl_premul_sum(3.0))
tell(sums=sums, part=part.cpu()[0].item())
dist.destroy_process_group()
