"""Symmetric memory with tracehook's guards taken away: the ranks always agree, and a capture is none."""

import sys

import torch
import torch.distributed as dist
import tracehook
from common import MB, RANK, filled, start
from symmetric_tools import caught, empty, meet, refill, symmetric, two_in_one_scope
from tracehook import _core, memory
from tracehook.agreement import Agreement


class Blind:
    """The native module, as it would be if it saw no captures."""

    def __getattr__(self, name: str) -> object:
        return (lambda _: False) if name == "capturing" else getattr(_core, name)


def blindfold() -> None:
    Agreement.compare = lambda *_: None
    Agreement.confirm = lambda *_: None


def order() -> None:
    """Rank 2 of four allocates in another order."""
    blindfold()
    two_in_one_scope(0, 0, (4, 8) if RANK != 2 else (8, 4))


def sizes() -> None:
    """Rank 1 of two allocates more."""
    blindfold()
    symmetric(0, 4)
    symmetric(0, 8 + 4 * RANK)


def number() -> None:
    """The last rank never comes to the second scope: the others wait in NCCL until its deadline."""
    blindfold()
    symmetric(0, 4)
    if RANK != 2:
        caught(lambda: symmetric(0, 8))
    meet()


def capture() -> None:
    """A scope inside a capture registers at once."""
    memory._core = Blind()
    source = filled(RANK + 1, 4, device)
    dist.all_reduce(refill(symmetric(0, 4), 1))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        with tracehook.symmetric(graph=True):
            out = empty(8)
        out[: 4 * MB // 4].copy_(source)
        dist.all_reduce(out)
    graph.replay()
    torch.cuda.synchronize()


device = start()
globals()[sys.argv[1]]()
torch.cuda.synchronize()
dist.destroy_process_group()
