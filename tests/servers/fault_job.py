"""Training of two stages with four ranks each, in which one rank gets a fault of nvidia-resiliency-ext.

Arguments: the fault, by the name that their module has for it, the rank and the step. The ranks train until they end.
"""

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH = WORLD // 2
SIZE = 1 << 14
STARTED = Path(os.environ["TEST_STORE"]).with_name(f"started {RANK}")  # of launch_and_end.py
FAULT, WHO, WHEN = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PID = os.getpid()
between = threading.Event()
SPEC = importlib.util.spec_from_file_location(
    "inject_fault", Path(os.environ["FETCHED"], "nvidia_resiliency_ext/shared_utils/inject_fault.py")
)
assert SPEC is not None
assert SPEC.loader is not None
theirs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(theirs)

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group(
    "nccl", store=dist.FileStore(os.environ["TEST_STORE"], WORLD), rank=RANK, world_size=WORLD, device_id=device
)
stages = [dist.new_group(range(first, first + WIDTH), group_desc=f"dp_{first // WIDTH}") for first in (0, WIDTH)]
pairs = [dist.new_group([rank, rank + WIDTH], group_desc=f"pp_{rank}") for rank in range(WIDTH)]
stage, pair = stages[RANK // WIDTH], pairs[RANK % WIDTH]
activation, gradient, loss = (torch.zeros(SIZE).to(device) for _ in range(3))


def began() -> None:
    """Say when the fault comes. One of this process comes between two steps, not in the midst of a call."""
    if os.getpid() == PID:
        between.wait()
    os.write(1, f"fault began {time.time()}\n".encode())


def train(step: int) -> None:
    """One step: forward, backward, the gradients, and sometimes the loss of all."""
    if RANK < WIDTH:
        dist.send(activation, RANK + WIDTH, group=pair)
        dist.recv(activation, RANK + WIDTH, group=pair)
    else:
        dist.recv(activation, RANK - WIDTH, group=pair)
        dist.send(activation, RANK - WIDTH, group=pair)
    theirs.maybe_raise_workload_exception()
    dist.all_reduce(gradient, group=stage)
    if step % 4 == 3:
        dist.all_reduce(loss)
        loss.cpu()


for step in range(1_000_000):
    if (step, RANK) == (WHEN, WHO):
        theirs.dispatch_fault_injection(theirs.Fault[FAULT], 0.5, began)
    between.clear()
    train(step)
    between.set()
    time.sleep(0.02)
    if step == 1:
        STARTED.touch()
