"""Correct programs whose ranks are late, have other settings or versions. seams.py CASE."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import tracehook
from torch.distributed import distributed_c10d
from tracehook.agreement import handshake

from common import MB, RANK, WORLD, filled, made_by_hand, must, raised, start, tell

CASE = sys.argv[1]
LATE = 4.0  # seconds; SYMM_REGISTER_TIMEOUT is 1
SIZE = 2 * MB // 4


def summed(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """Put this rank's number into all elements, and sum."""
    tensor.copy_(torch.full((tensor.numel(),), float(RANK + 1)))
    dist.all_reduce(tensor, group=group)
    return float(tensor[-1].cpu())


def symmetric(group: dist.ProcessGroup | None = None, size: int = SIZE) -> torch.Tensor:
    with tracehook.symmetric(group):
        return torch.empty(size, device=device)


def late_to_a_barrier() -> None:
    """One scope was used before; then rank 0 prepares data while the others wait."""
    y = symmetric()
    first = summed(y)
    if RANK == 0:
        time.sleep(LATE)
    dist.barrier()
    tell(first=first, then=summed(filled(0, 1, device)), again=summed(y))


def late_to_a_scope() -> None:
    """Rank 0 comes late to the end of a scope, and to the first use of its tensor."""
    if RANK == 0:
        time.sleep(LATE)
    y = symmetric()
    if RANK == 0:
        time.sleep(LATE)
    tell(sum=summed(y))


def settings() -> None:
    """The ranks have other settings: what they are told, and what comes of a correct program."""
    y = symmetric()
    tell(sum=summed(y), plain=summed(filled(0, 1, device)), symmetric=tracehook.is_symmetric(y))


def versions() -> None:
    """The last rank has another version of tracehook."""
    began = time.monotonic()
    tell(error=raised(symmetric), seconds=time.monotonic() - began)


def two_launches() -> None:
    """The default group is the launch's own. A group of both launches has a store of its own, as in RL stacks."""
    common = joined()
    sums = []
    for turn in range(3):
        if RANK < WORLD - 1:  # the trainer's own scopes
            y = symmetric()
            y.copy_(torch.full((SIZE,), float(RANK + 1)))
            dist.all_reduce(y)
            sums.append(float(y[-1].cpu()))
        z = symmetric(common, SIZE << turn)
        sums.append(summed(z, common))
    tell(sums=sums, symmetric=tracehook.is_symmetric(z, common))


def simulated() -> None:
    """A group of calls of which NCCL only estimates the time, and then a communicator that is real."""
    tensor = filled(RANK + 1, 24, device)
    dist.all_reduce(tensor)
    with dist._time_estimator(device=device):
        dist.all_reduce(tensor)
    second = dist.new_group(list(range(WORLD)))
    dist.all_reduce(tensor, group=second)
    nccl, alone = made_by_hand(simulated=True)
    known = tracehook.status()["communicators"]
    tell(held=[row["held"] for row in known], made=alone.value in [row["pointer"] for row in known])
    must(nccl.ncclCommDestroy(alone))


def joined() -> dist.ProcessGroup:
    """Make a group over a store of its own, whose ranks are those of all launches."""
    own = dist.FileStore(os.environ["TEST_STORE"] + "-common", WORLD)
    group, _ = distributed_c10d._new_process_group_helper(
        WORLD,
        RANK,
        [],
        distributed_c10d.Backend("nccl"),
        dist.PrefixStore("weights", own),
        group_name="weights",
        timeout=timedelta(seconds=60),
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(WORLD)}
    return group


if CASE == "settings":
    own = f"RANK{RANK}_"
    os.environ |= {name.removeprefix(own): value for name, value in os.environ.items() if name.startswith(own)}
    tracehook.enable()
if CASE in ("versions", "formats") and RANK == WORLD - 1:
    if CASE == "versions":
        tracehook.__version__ = "9.9.9"
    else:
        handshake.FORMAT = 99
if CASE == "two_launches":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    is_trainer = RANK < WORLD - 1
    ranks = WORLD - 1 if is_trainer else 1
    of_launch = dist.FileStore(os.environ["TEST_STORE"] + ("-trainer" if is_trainer else "-server"), ranks)
    dist.init_process_group("nccl", store=of_launch, rank=RANK if is_trainer else 0, world_size=ranks)
else:
    device = start(waits=True)
(versions if CASE == "formats" else globals()[CASE])()
if CASE not in ("versions", "formats"):
    dist.destroy_process_group()
