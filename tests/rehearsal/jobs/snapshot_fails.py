"""tracehook is enabled beside segments that exist, with a hook library whose snapshots may fail."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import library as hook_library

from common import filled, nccl_calls, start, tell

device = start()
older = filled(1, 24, device)
dist.all_reduce(older)
hook_library.path_for = lambda _: Path(sys.argv[1])
tracehook.enable()
younger = filled(1, 24, device)
dist.all_reduce(younger)
tell(status=tracehook.status(), left=nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister"))
tracehook.disable()
tracehook.enable()
dist.all_reduce(younger)
tell(again=tracehook.status()["state"], left_again=nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister"))
del older, younger
torch.cuda.empty_cache()
dist.destroy_process_group()
