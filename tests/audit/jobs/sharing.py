"""Ranks that map each other's memory, and what can go wrong with that; the first argument says how."""

import contextlib
import sys

import torch
import torch.distributed as dist
from common import RANK, filled, start
from tracehook.errors import PeerTimeout
from tracehook.ipc import PeerGroup, PeerTensor
from tracehook.ipc.tables import EXPORTS, IMPORTS

PEER = 1 - RANK


def meet() -> None:
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def left() -> None:
    """Nobody closes the group, or lets go of what came from the peer."""
    group = PeerGroup()
    theirs = group.exchange({PEER: filled(RANK, 24, device)})[PEER]
    assert isinstance(theirs, PeerTensor)
    kept.append((group, theirs.tensor))
    meet()


def late() -> None:
    with PeerGroup(timeout=1.0) as group:
        if RANK == 0:
            with contextlib.suppress(PeerTimeout):
                group.exchange({PEER: filled(RANK, 24, device)})
        dist.barrier()


def careless() -> None:
    """Rank 0 gives its memory back to the driver while rank 1 has it mapped."""
    with PeerGroup() as group:
        mine = filled(RANK, 24, device)
        group.exchange({PEER: mine})
        meet()
        if RANK == 0:
            export = EXPORTS._loans[mine.untyped_storage()._cdata].export
            export.links.clear()
            EXPORTS._ask_and_drop(export)
            del mine
            torch.cuda.empty_cache()
        meet()


def forgetful() -> None:
    """Rank 1 forgets what it has mapped, and maps it again."""
    with PeerGroup() as group:
        mine = filled(RANK, 24, device)
        group.exchange({PEER: mine})
        if RANK == 1:
            largest = max(IMPORTS._imports.values(), key=lambda imported: imported.mapping.size)
            kept.append(IMPORTS._imports.pop(largest.key))
        group.exchange({PEER: mine[1:]})
        meet()


kept: list[object] = []
device = start()
globals()[sys.argv[1]]()
dist.destroy_process_group()
