"""A group of calls of which NCCL only estimates the time, and then a communicator that is real."""

import torch.distributed as dist
import tracehook

from common import RANK, WORLD, filled, start, tell

device = start()
tensor = filled(RANK + 1, 24, device)
dist.all_reduce(tensor)
with dist._time_estimator(device=device) as estimate:
    dist.all_reduce(tensor)
tell(estimated=estimate.estimated_time)
second = dist.new_group(list(range(WORLD)))
dist.all_reduce(tensor, group=second)
tell(held=[row["held"] for row in tracehook.status()["communicators"]])
dist.destroy_process_group()
