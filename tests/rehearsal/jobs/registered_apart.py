"""A call that gains by registered memory, where rank 1 differs: in a variable, or it has no tracehook (`-`)."""

import os
import sys
import time

import torch
import torch.distributed as dist
import tracehook
from tracehook.symmetric_memory import registered_calls

from common import MB, RANK, WORLD, filled, passed_on, start, tell

VARIABLE, VALUE, WHAT = sys.argv[1:]
registered_calls.LONGEST = 3.0 if VARIABLE == "-" else 10.0  # there somebody answers
if RANK == 1 and VARIABLE != "-":
    os.environ[VARIABLE] = VALUE
if RANK == 0 or VARIABLE != "-":
    tracehook.enable()
device = start()
begin = time.monotonic()
sums = []
for number in range(2):
    part, whole = filled(RANK + 1 + number, 48, device), torch.zeros(WORLD * 48 * MB // 4, device=device)
    if WHAT == "gather":
        dist.all_gather_into_tensor(whole, part)
        sums.append(whole.cpu()[:: 48 * MB // 4].tolist())
    else:
        sums.append(passed_on(part).cpu()[[0, -1]].tolist())
tell(sums=sums, seconds=time.monotonic() - begin)
time.sleep(1.5)  # so that the watchdog of this rank still answers
dist.destroy_process_group()
