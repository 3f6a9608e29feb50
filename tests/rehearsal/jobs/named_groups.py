"""Four ranks in pairs, whose ranks in the pair differ from those in the job; the first argument says what happens."""

import os
import sys

import torch
import torch.distributed as dist
import tracehook
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from common import RANK, filled, start, tell
from symmetric_tools import SIZE, attempt, caught, empty, meet, symmetric


def pair() -> dist.ProcessGroup:
    """Return this rank's pair, which the program calls tp_0 or tp_1."""
    pairs = [dist.new_group([2 * place, 2 * place + 1], group_desc=f"tp_{place}") for place in range(2)]
    return pairs[RANK // 2]


def rest() -> None:
    """Wait until the log's thread has looked: it asks torch for the groups and for this process's rank."""
    tracehook.status()


def sizes() -> None:
    """A scope of the second pair, with another size on each rank."""
    start()
    mine = pair()
    dist.all_reduce(filled(1, 1, "cuda"), group=mine)
    rest()
    if RANK >= 2:
        attempt(lambda: symmetric(1, SIZE * (RANK - 1), group=mine))
    meet()


def late() -> None:
    """The last rank does not come to a scope of its pair."""
    start()
    mine = pair()
    dist.all_reduce(filled(1, 1, "cuda"), group=mine)
    rest()
    if RANK == 2:
        attempt(lambda: symmetric(1, group=mine))
    meet()


def mesh() -> None:
    """Groups of a mesh."""
    start(bind=False)
    made = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        dist.all_reduce(filled(1, 1, "cuda"), group=made[name].get_group())
    rest()


def refused() -> None:
    """A policy, which is installed in the folder of the argument, gives no window to the pairs."""
    sys.path.append(sys.argv[2])
    start()
    mine = pair()
    with tracehook.symmetric(mine, operation="all_reduce", nbytes=4096):
        small = empty()
    tell(one=list(tracehook.explain(small, mine)))
    with tracehook.symmetric(mine, nbytes=SIZE << 20):
        large = empty()
    tell(two=list(tracehook.explain(small, mine)), large=list(tracehook.explain(large, mine)))


def worker(index: int, store: str, size: int) -> None:
    """One process of `spawned`, whose environment says no rank."""
    torch.cuda.set_device(index)
    assert "RANK" not in os.environ
    dist.init_process_group("nccl", store=dist.FileStore(store, size), rank=size - 1 - index, world_size=size)
    dist.all_reduce(filled(1, 1, "cuda"))
    rest()
    dist.destroy_process_group()


def spawned() -> None:
    """Workers of torch.multiprocessing, without a launcher; once for each argument after the store, of that size."""
    for number, size in enumerate(map(int, sys.argv[3:])):
        spawn(worker, (f"{sys.argv[2]}{number}", size), nprocs=size)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    if dist.is_initialized():
        caught(dist.destroy_process_group)
