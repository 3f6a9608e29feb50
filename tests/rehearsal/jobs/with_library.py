"""CUDA comes up while the hook library is another one than the installed, or none."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import library as hook_library

from common import filled, start, tell

chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else None
hook_library.path_for = lambda _: chosen
tracehook.enable()
device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
tell(status=tracehook.status(), up=torch.cuda.is_initialized())
tracehook.disable()
tracehook.enable()
del tensor
torch.cuda.empty_cache()
dist.destroy_process_group()
