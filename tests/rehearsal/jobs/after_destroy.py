"""Allocation and empty_cache after the end of all groups."""

import torch
import torch.distributed as dist

from common import MB, filled, raised, start, tell

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
dist.destroy_process_group()
del tensor
tell(allocation=raised(torch.empty, 256 * MB, dtype=torch.uint8, device=device))
tell(empty_cache=raised(torch.cuda.empty_cache))
