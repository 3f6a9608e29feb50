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


def clean() -> None:
    """Remove what torch itself left: a rank that is early would find NCCL's unique id of the attempt before."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
    clean = f"clean/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    if RANK == 0:
        for key in store.list_keys():
            if key.startswith("default_pg/") and "tracehook" not in key:
                store.delete_key(key)
        store.set(clean, "")
    store.wait([clean])


clean()
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
tell(sum=reduced(symmetric(RANK + 1.0)))
for _ in range(int(HEALTHY / 0.1)):
    tell(again=reduced(symmetric(RANK + 1.0)))
    time.sleep(0.1)
dist.destroy_process_group()
