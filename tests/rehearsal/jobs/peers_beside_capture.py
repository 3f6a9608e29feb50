"""Memory of a peer is unmapped while another thread of this process captures a stream."""

import sys
import threading
import time

import torch
import torch.distributed as dist
import tracehook
from tracehook.ipc import PeerGroup, PeerTensor
from tracehook.ipc.tables import IMPORTS

from common import RANK, capture_beside, filled, start, tell

OTHER = 1 - RANK
PATIENCE = 10  # seconds


def born() -> torch.Tensor:
    """Return a tensor of this rank: on a segment of the allocator, or of a pool."""
    if sys.argv[1] == "pool":
        with tracehook.symmetric():
            tensor = torch.empty(32 << 18, device=device)
        return tensor.copy_(torch.full(tensor.shape, float(RANK)))
    return filled(RANK, 32, device)


def meet() -> None:
    """Wait for all work of both ranks."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


device = start()
with PeerGroup() as group:
    mine = born()
    torch.cuda.synchronize()
    theirs = group.exchange({OTHER: mine})[OTHER]
    assert isinstance(theirs, PeerTensor)
    copied = theirs.get()
    tell(value=float(copied[0].cpu()))
    before = IMPORTS.mapped()
    began, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=capture_beside, args=(device, began, end))
    meet()
    thread.start()
    began.wait()
    del mine, theirs  # each rank wants its own memory back, and the other one unmaps it
    deadline = time.monotonic() + PATIENCE
    while IMPORTS.mapped() == before and time.monotonic() < deadline:
        group.poll()
        time.sleep(0.002)
    tell(unmapped=before - IMPORTS.mapped())
    end.set()
    thread.join()
    meet()
dist.destroy_process_group()
