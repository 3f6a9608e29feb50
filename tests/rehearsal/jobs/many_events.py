"""More events than the ring holds while the log's thread cannot run, because this thread keeps the GIL."""

import sys
import time

import torch
from tracehook import _core

from common import start

start()
interval = sys.getswitchinterval()
sys.setswitchinterval(60)
for _ in range(40_000):
    _core.push("hook.enable", segments=0, bytes=0)
    _core.push("hook.disable", segments=0, bytes=0)
sys.setswitchinterval(interval)
time.sleep(3)  # the log catches up, so that what follows has room and shows the gap
torch.distributed.destroy_process_group()
