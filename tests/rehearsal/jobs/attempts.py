"""torchrun restarts the processes once, and both attempts have one store. In the first one rank 1 fails.

first    while rank 0 waits in its first scope: torch has made no communicator yet
adopted  while rank 0 waits in a collective of a communicator that tracehook found: there is an alarm about it
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import tracehook

from common import RANK, start, tell
from symmetric_tools import reduced, symmetric

FAILS = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
HEALTHY = 3.0  # seconds in which the watch of each rank looks at the store

start(bind=False)
if sys.argv[1] == "adopted":
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()
    tracehook.enable()
    x = symmetric(1.0)
    if FAILS and RANK == 0:
        dist.all_reduce(x)
if FAILS:
    if RANK == 1:
        time.sleep(HEALTHY)
        os._exit(1)
    symmetric(1.0)
    torch.cuda.synchronize()  # torchrun ends it
end = time.monotonic() + HEALTHY
tell(sum=reduced(symmetric(RANK + 1.0)))
while time.monotonic() < end:
    tell(again=reduced(symmetric(RANK + 1.0)))
dist.destroy_process_group()
