"""Ranks with windows, whose metrics are looked at: they end in order, disagree, hang in NCCL, or one is killed."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.metrics.follow import follow
from tracehook.metrics.table import COMMON

from common import MB, RANK, WORLD, start, tell, until
from symmetric_tools import in_vain_once_agreed

SINCE = "tracehook_registration_in_progress_since_timestamp_seconds"


def own(name: str) -> dict[str, float]:
    """Return one metric of this process, by its own label: kind or about."""
    tracehook.status()  # waits until all events are taken
    return {labels[len(COMMON)]: value for labels, value in FOLLOWED.series()[name]}


def look_meanwhile() -> None:
    """Tell since when a registration is in progress, as soon as one is."""
    while not is_over.wait(0.01):
        if since := own(SINCE)["window"]:
            tell(since=since, now=time.time())
            return


FOLLOWED = follow()
is_over = threading.Event()
device = start()
size = 32 * MB * (2 if sys.argv[1] == "mismatch" and RANK == 0 else 1)
watcher = threading.Thread(target=look_meanwhile)
if sys.argv[1] == "hangs":
    in_vain_once_agreed()
    watcher.start()
try:
    with tracehook.symmetric(dist.group.WORLD):
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
    dist.all_reduce(tensor)
except tracehook.RegistrationError as problem:
    tell(error=type(problem).__name__)
torch.cuda.synchronize()
is_over.set()
if sys.argv[1] == "hangs":
    watcher.join()
tell(disagreed=own("tracehook_ranks_disagreed_total"), pid=os.getpid())
if sys.argv[1] == "killed" and RANK == WORLD - 1:
    until(lambda: any(Path(os.environ["SYMM_REGISTER_METRICS"]).glob(f"*.rank{RANK}.*.prom")))
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "killed":
    os._exit(0)  # the others would wait for it
dist.destroy_process_group()
