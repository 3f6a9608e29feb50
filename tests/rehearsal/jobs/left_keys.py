"""Groups that are made, used with windows and destroyed, one after the other: which keys of ours stay in the store."""

import re
import sys
import time

import torch
import torch.distributed as dist

from common import RANK, WORLD, tell
from symmetric_tools import meet, reduced, symmetric
from tcp import connect

GROUPS = 4
PATIENCE = 20  # seconds


def ours() -> list[str]:
    """Return our keys, without what differs between runs."""
    keys = [key for key in store.list_keys() if "tracehook/" in key]
    return sorted(re.sub(r"[0-9a-f]{32}/[0-9a-f]{16}", "*", key.partition("tracehook/")[2]) for key in keys)


device, store = connect()
x = symmetric(1.0)
time.sleep(float(sys.argv[1]) + 1)  # until the default group has all its keys
meet()
before = ours()
meet()
for _ in range(GROUPS):
    group = dist.new_group(list(range(WORLD)), device_id=device)
    y = symmetric(RANK + 1.0, 32, group)
    tell(sum=reduced(y, group))
    time.sleep(float(sys.argv[1]))  # until each rank has posted what it used
    dist.destroy_process_group(group)
    del y, group
meet()
most = int(sys.argv[2])
deadline = time.monotonic() + PATIENCE
while len(ours()) > len(before) + most * GROUPS and time.monotonic() < deadline:
    time.sleep(0.1)
left = ours()
for key in before:
    left.remove(key)
meet()
tell(left=left)
torch.cuda.synchronize()
dist.destroy_process_group()
