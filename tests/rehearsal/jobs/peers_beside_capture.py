"""Memory of a peer is unmapped while another thread of this process captures a stream."""

import sys

import torch
import torch.distributed as dist
import tracehook
from tracehook.ipc import PeerGroup, PeerTensor
from tracehook.ipc.tables import IMPORTS

from common import RANK, captured_beside, filled, settle, start, tell, until

OTHER = 1 - RANK


def born() -> torch.Tensor:
    """Return a tensor of this rank: on a segment of the allocator, or of a pool."""
    if sys.argv[1] == "pool":
        with tracehook.symmetric():
            tensor = torch.empty(32 << 18, device=device)
        return tensor.copy_(torch.full(tensor.shape, float(RANK)))
    return filled(RANK, 32, device)


def has_unmapped() -> bool:
    """Do what the other rank wants; tell whether that was to unmap."""
    group.poll()
    return IMPORTS.mapped() != before


device = start()
with PeerGroup() as group:
    mine = born()
    torch.cuda.synchronize()
    theirs = group.exchange({OTHER: mine})[OTHER]
    assert isinstance(theirs, PeerTensor)
    copied = theirs.get()
    tell(value=float(copied[0].cpu()))
    before = IMPORTS.mapped()
    settle()
    with captured_beside(device):
        if sys.argv[1] == "pool":
            group.release(mine)  # else it comes back when the group is closed
        del mine, theirs  # each rank wants its own memory back, and the other one unmaps it
        until(has_unmapped, 10)
        tell(unmapped=before - IMPORTS.mapped())
    settle()
dist.destroy_process_group()
