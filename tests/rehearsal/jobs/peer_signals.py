"""A ring of peers that copy. Arguments: the ranks that read by PeerTensor.get(), which sends no signal."""

import sys
import threading

import torch
import torch.distributed as dist
from tracehook import _core
from tracehook.ipc import PeerGroup, PeerTensor

from common import RANK, WORLD, filled, start, started

WRONG = [int(word) for word in sys.argv[1:]]
RIGHT, LEFT = (RANK + 1) % WORLD, (RANK - 1) % WORLD


def ring(peers: PeerGroup) -> None:
    """Give the right neighbour a tensor, and take the left one's."""
    mine = filled(RANK, 1, device)
    theirs = peers.exchange({RIGHT: mine, LEFT: None} if RIGHT != LEFT else {RIGHT: mine})[LEFT]
    assert isinstance(theirs, PeerTensor)
    # Of two ranks, a channel for each tensor: else a signal that tells "you may read" answers the wait for "was read".
    to_right, to_left = (RANK, LEFT) if WORLD == 2 else (0, 0)
    for _ in range(2):
        peers.signal(RIGHT, to_right)
        theirs.get() if RANK in WRONG else peers.get(theirs, channel=to_left)
        peers.wait(RIGHT, to_right)
    let_end()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def let_end() -> None:
    """The operator ends the job some time after all ranks came here, and asks for the stacks before."""
    threading.Timer(3, _core.ask_stacks).start()
    started()


device = start()
dist.all_reduce(torch.ones(4, device=device))
with PeerGroup() as group:
    ring(group)
dist.destroy_process_group()
