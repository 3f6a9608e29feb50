"""CUDA comes up while the hook library is another one than the installed, or none.

Arguments: the library; `late`, to enable tracehook beside segments that exist, of which its snapshots may fail.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import library as hook_library

from common import filled, nccl_calls, start, tell

chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else None
hook_library.path_for = lambda _: chosen


def left() -> int:
    """Return how many registrations there are now."""
    return nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister")


if "late" not in sys.argv:
    tracehook.enable()
device = start()
tensors = [filled(1, 24, device)]
dist.all_reduce(tensors[0])
if "late" in sys.argv:
    tracehook.enable()
    tensors.append(filled(1, 24, device))
    dist.all_reduce(tensors[1])
tell(status=tracehook.status(), up=torch.cuda.is_initialized(), left=left())
tracehook.disable()
tracehook.enable()
dist.all_reduce(tensors[-1])
tell(again=tracehook.status()["state"], left_again=left())
tensors.clear()
torch.cuda.empty_cache()
dist.destroy_process_group()
