"""An allocator of the program's own in place of torch's."""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import filled, start, tell
from own_allocator import made_in

torch.cuda.memory.change_current_allocator(made_in(sys.argv[1], "pluggable"))

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
tell(status=tracehook.status(), sum=tensor.cpu()[0].item())
dist.destroy_process_group()
tell(end="reached")
