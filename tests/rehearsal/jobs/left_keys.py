"""Groups that are made, used with windows and destroyed, one after the other: which keys of ours stay in the store."""

import functools
import re
import sys
from typing import Any

import torch
import torch.distributed as dist
from tracehook.symmetric_memory import state

from common import RANK, WORLD, tell, until
from symmetric_tools import meet, reduced, symmetric
from tcp import connect

GROUPS = 2
OF_ALL = ("alarms",)  # which the watchdog of some process writes when it has looked once


def ours() -> list[str]:
    """Return our keys, without what differs between runs: an alarm, and who asked, stand there if a rank was slow."""
    keys = [key for key in store.list_keys() if "tracehook/" in key and not re.search(r"alarms/\d+$|/asked/", key)]
    return sorted(re.sub(r"[0-9a-f]{32}/[0-9a-f]{16}", "*", key.partition("tracehook/")[2]) for key in keys)


def has_posted(group: dist.ProcessGroup) -> bool:
    """Whether this rank has posted what it used with the group; or heard it from all, as rank 0 does."""
    memory: Any = state.memory()
    verification = memory.windows(group)._uses._follower._verification
    if verification is None:
        return False
    return bool((verification._same if RANK == 0 else verification._calls) >= 0)


device, store = connect()
x = symmetric(RANK + 1.0)
assert reduced(x) == sum(range(1, WORLD + 1))
assert until(lambda: set(OF_ALL) <= set(ours()))
assert until(functools.partial(has_posted, dist.group.WORLD))
meet()
before = ours()
meet()
for _ in range(GROUPS):
    group = dist.new_group(list(range(WORLD)), device_id=device)
    y = symmetric(RANK + 1.0, 32, group)
    tell(sum=reduced(y, group))
    assert until(functools.partial(has_posted, group))
    meet()
    dist.destroy_process_group(group)
    del y, group
meet()
most = int(sys.argv[1])
until(lambda: len(ours()) <= len(before) + most * GROUPS)
left = ours()
for key in before:
    left.remove(key)
meet()
tell(left=left)
torch.cuda.synchronize()
dist.destroy_process_group()
