"""Training in several dimensions, in which one rank does something else. Arguments: the fault, the rank, the step.

Ranks 2k and 2k + 1 are a group of tensor parallelism, and one of context parallelism. From eight ranks on the first
half of the ranks is the first stage of a pipeline. The ranks of one stage that have the same place in their groups are
a group of data parallelism.
"""

import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, filled, start, started

FAULT, WHO, WHEN = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STEPS = 6
SIZE = 1 / 16  # MiB of a tensor
STAGES = 2 if WORLD >= 8 else 1
WIDTH = WORLD // STAGES
STAGE = RANK // WIDTH
PAIRS = [[first, first + 1] for first in range(0, WORLD, 2)]
TIMEOUT = timedelta(seconds=600)  # of torch
SHORT = os.environ.get("TEST_TIMEOUT")  # seconds; of torch, from the step on in which a rank does wrong

device = start(seconds=TIMEOUT.total_seconds())
groups: dict[str, dist.ProcessGroup] = {}
members: dict[str, list[list[int]]] = {
    "tp": PAIRS,
    "cp": PAIRS,
    "dp": [list(range(first + place, first + WIDTH, 2)) for first in range(0, WORLD, WIDTH) for place in (0, 1)],
    "pp": [[rank, rank + WIDTH] for rank in range(WIDTH)] if STAGES > 1 else [],
}
for kind, each in members.items():
    for number, ranks in enumerate(each):
        made = dist.new_group(ranks, group_desc=f"{kind}_{number}", device_id=device, timeout=TIMEOUT)
        if RANK in ranks:
            groups[kind] = made
tensors = {name: filled(RANK, SIZE, device) for name in ("layer", "gradient", "loss", "passed")}
started()


def fails_now(step: int, *faults: str) -> bool:
    """Whether this rank is to do this wrong now."""
    return RANK == WHO and step == WHEN and FAULT in faults


def end_somehow() -> None:
    match FAULT:
        case "exception":
            raise RuntimeError(f"user bug on rank {RANK}")
        case "os_exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "out_of_memory":
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        case "compute":
            if "TORCH_FR_DUMP_TEMP_FILE" in os.environ:
                importlib.import_module("torch._inductor.codecache")  # torch's first dump imports it, for seconds
            threading.Event().wait()


def layer(step: int, number: int) -> None:
    if number == 1 and fails_now(step, "skip"):
        return
    if number == 1 and fails_now(step, "operation"):
        dist.broadcast(tensors["layer"], group=groups["tp"], group_src=0)
    elif number == 1 and fails_now(step, "count"):
        dist.all_reduce(tensors["layer"][:-1], group=groups["tp"])
    else:
        dist.all_reduce(tensors["layer"], group=groups["tp"])


def pass_on(step: int) -> None:
    """Send to the next stage, or receive from the one before."""
    if STAGE == 0:
        dist.send(tensors["passed"], RANK + WIDTH, group=groups["pp"])
    elif not fails_now(step, "receive"):
        dist.recv(tensors["passed"], RANK - WIDTH, group=groups["pp"])


def scopes(step: int) -> None:
    """Make and use memory of a scope."""
    if step == WHEN and FAULT == "scope" and RANK != WHO:
        with tracehook.symmetric(groups["tp"]):
            torch.empty(32 << 20, dtype=torch.uint8, device=device)
    if step == WHEN and FAULT == "swap":
        made = []
        for _ in range(2):
            with tracehook.symmetric(groups["tp"]):
                made.append(torch.empty(32 << 18, device=device))
        dist.all_reduce(made[RANK == WHO], group=groups["tp"])


def train(step: int) -> None:
    if step == WHEN and SHORT is not None:
        for group in (dist.group.WORLD, *groups.values()):
            group.set_timeout(timedelta(seconds=float(SHORT)))
    if fails_now(step, "exception", "os_exit", "segfault", "killed", "out_of_memory", "compute"):
        end_somehow()
    if STAGES > 1 and STAGE == 1:
        pass_on(step)
    for number in range(2):
        layer(step, number)
    if STAGES > 1 and STAGE == 0:
        pass_on(step)
    scopes(step)
    order = ["cp", "tp"]
    for kind in order[::-1] if fails_now(step, "order") else order:
        dist.all_reduce(tensors["layer"], group=groups[kind])
        if FAULT == "order":
            torch.cuda.synchronize()
    dist.all_reduce(tensors["gradient"], group=groups["dp"])
    torch.cuda.synchronize()
    if step % 2:
        dist.all_reduce(tensors["loss"])
        torch.cuda.synchronize()


for step in range(STEPS):
    train(step)
    time.sleep(0.02)
if FAULT == "interrupt":
    time.sleep(600)
dist.destroy_process_group()
