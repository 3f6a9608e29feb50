"""More events than the ring holds while the log's thread cannot run, because this thread keeps the GIL."""

import sys

import torch
from common import start

from tracehook import _core

start()
interval = sys.getswitchinterval()
sys.setswitchinterval(60)
for _ in range(40_000):
    _core.push("hook.enable")
    _core.push("hook.disable")
sys.setswitchinterval(interval)
torch.distributed.destroy_process_group()
