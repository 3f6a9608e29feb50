"""Ranks that all have a watch come to differ in what they registered. uneven.py HOW; ``failed``: by a planted fault."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.symmetric_memory import registration_parity

from common import RANK, start, tell, until
from symmetric_tools import meet, symmetric

LAST = 2  # of three ranks
PATIENCE = 60.0  # seconds
TELLS = 6.0  # seconds, after the time in which all ranks may change alike, until all have heard of a difference


def wait_to_hear() -> None:
    """Return when all ranks but the last one have logged that one differs, and some looks later."""
    log = Path(str(tracehook.status()["log"]))
    until(lambda: RANK == LAST or '"communicator.uneven"' in log.read_text(), PATIENCE)
    meet(2 * PATIENCE)
    time.sleep(2.5)  # for what nobody is to say


device = start()
how = sys.argv[1]
if how == "all":
    registration_parity.GRACE = 15.0  # of two ranks that change alike one may be so late on a busy machine
x = symmetric(1.0)  # from now on this process has a watch
meet()
if how == "all":
    time.sleep(0.3 * RANK)
    tracehook.disable()
    time.sleep(registration_parity.GRACE + TELLS)
else:
    if how != "failed" and RANK == LAST:
        tracehook.disable()
    wait_to_hear()
meet()
tell(failed=[row["failed"] for row in tracehook.status()["communicators"]])
del x
torch.cuda.synchronize()
dist.destroy_process_group()
