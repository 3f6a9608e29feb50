"""Four ranks in pairs, whose ranks in the pair differ from those in the job; the first argument says what happens."""

import sys

import torch.distributed as dist
import tracehook
from torch.distributed.device_mesh import init_device_mesh

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


globals()[sys.argv[1]]()
if dist.is_initialized():
    caught(dist.destroy_process_group)
