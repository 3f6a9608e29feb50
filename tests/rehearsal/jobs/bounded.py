"""Ranks that allocate, share and reduce for a given time, or until their logs have reached their limit.

Argument: the seconds. Rank 1 logs a lie at the beginning and at the end: that it freed a segment which is registered.
"""

import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook import _core

from common import MB, RANK, start, tell

SECONDS = float(sys.argv[1])
LIAR = 1
ROUND = 50  # steps between two looks at the clock
PAUSE = 0.0005  # seconds; no crowd that the log would sum

chance = random.Random(7)  # the same choices on all ranks
kept: list[torch.Tensor] = []
groups: list[dist.ProcessGroup] = []


def grow() -> None:
    for _ in range(chance.randint(1, 4)):
        kept.append(torch.empty(chance.randint(20, 30) * MB, dtype=torch.uint8, device=device))


def shrink() -> None:
    while len(kept) > 20 or (kept and chance.random() < 0.5):
        kept.pop(chance.randrange(len(kept)))
    torch.cuda.empty_cache()


def share() -> None:
    """Make a window, use it and undo it."""
    with tracehook.symmetric(dist.group.WORLD):
        tensor = torch.ones(8 * MB // 4, device=device)
    dist.all_reduce(tensor)
    del tensor
    tracehook.trim()


def regroup() -> None:
    if groups:
        dist.destroy_process_group(groups.pop())
    else:
        groups.append(dist.new_group(device_id=device))


def lie(when: str) -> None:
    """Log that a segment was freed, which a communicator holds."""
    tensor = torch.empty(40 * MB, dtype=torch.uint8, device=device)
    place = tensor.data_ptr()
    ((segment, size),) = ((row.id, row.size) for row in _core.segments() if row.address == place)
    _core.push("segment.free", segment=segment, addr=place, size=size, total=0, device=device.index)
    tell(**{when: segment})


def is_over() -> bool:
    """Return whether rank 0's time is over, and all logs have thrown lines away; on all ranks alike."""
    log = Path(str(tracehook.status()["log"]))
    keeps_all = log.exists()  # the first part
    going_on = torch.tensor([float(keeps_all or (RANK == 0 and time.monotonic() < end))]).to(device)
    dist.all_reduce(going_on)
    return not going_on.item()


device = start()
dist.barrier()
if RANK == LIAR:
    lie("early")
end = time.monotonic() + SECONDS
acts = [*12 * [grow, shrink], share, regroup]
while not is_over():
    for _ in range(ROUND):
        chance.choice(acts)()
        time.sleep(PAUSE)
if RANK == LIAR:
    lie("late")
dist.barrier()
torch.cuda.synchronize()
while groups:
    dist.destroy_process_group(groups.pop())
dist.destroy_process_group()
