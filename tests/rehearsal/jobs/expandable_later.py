"""Expandable segments that a program switches on while it runs."""

import torch
import torch.distributed as dist
import tracehook

from common import filled, start, tell

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
tell(before=tracehook.status()["state"])
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
later = filled(1, 48, device)
dist.all_reduce(later)
tell(status=tracehook.status())
del later
torch.cuda.empty_cache()
dist.destroy_process_group()
