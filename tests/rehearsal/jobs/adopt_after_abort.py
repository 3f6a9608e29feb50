"""tracehook enabled when one group was aborted and another lives."""

import torch.distributed as dist
import tracehook

from common import filled, start, tell

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
doomed = dist.new_group([0])
dist.all_reduce(tensor, group=doomed)
doomed._get_backend(device).abort()
tracehook.enable()
tell(status=tracehook.status())
dist.all_reduce(tensor)
dist.destroy_process_group()
