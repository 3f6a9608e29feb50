"""Ranks that all have a watch come to differ in what they registered. uneven.py HOW; ``failed``: by a planted fault."""

import sys
import time

import torch
import torch.distributed as dist
import tracehook
from tracehook.symmetric_memory import uneven

from common import RANK, start, tell
from symmetric_tools import meet, symmetric

LAST = 2  # of three ranks
HEARD = uneven.GRACE + 6  # seconds until all have heard of a change


device = start()
how = sys.argv[1]
x = symmetric(1.0)  # from now on this process has a watch
meet()
if how in ("one", "back") and RANK == LAST:
    tracehook.disable()
elif how == "all":
    time.sleep(0.3 * RANK)
    tracehook.disable()
time.sleep(HEARD)
if how == "back":
    meet()
    if RANK == LAST:
        tracehook.enable()
    time.sleep(HEARD)
meet()
tell(failed=[row["failed"] for row in tracehook.status()["communicators"]])
del x
torch.cuda.synchronize()
dist.destroy_process_group()
