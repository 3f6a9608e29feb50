"""A group, a split of it and a split of that."""

import torch.distributed as dist

from common import RANK, WORLD, filled, start

device = start()
tensor = filled(RANK + 1, 24, device)
dist.all_reduce(tensor)
ranks = list(range(WORLD))
first = dist.split_group(split_ranks=[ranks])
dist.all_reduce(tensor, group=first)
second = dist.split_group(split_ranks=[ranks], parent_pg=dist.group.WORLD)
dist.all_reduce(tensor, group=second)
dist.barrier()
dist.destroy_process_group()
