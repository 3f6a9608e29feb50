"""Symmetric memory with tracehook's guards taken away: the ranks always agree, and a capture is none."""

import sys

import torch
import torch.distributed as dist
import tracehook
from common import MB, RANK, filled, start
from symmetric_tools import caught, empty, meet, refill, symmetric, two_in_one_scope
from tracehook import _core
from tracehook.agreement.agreement import Agreement
from tracehook.symmetric_memory import memory


class Blind:
    """The native module, as it would be if it saw no captures."""

    def __getattr__(self, name: str) -> object:
        return (lambda _: False) if name == "capturing" else getattr(_core, name)


def blindfold() -> None:
    Agreement.compare = lambda *_: None  # type: ignore[method-assign,assignment]  # it never refuses
    Agreement.confirm = lambda *_: None  # type: ignore[method-assign,assignment]


def order() -> None:
    """Rank 2 of four allocates in another order."""
    blindfold()
    two_in_one_scope(0, 0, (32, 64) if RANK != 2 else (64, 32))


def sizes() -> None:
    """Rank 1 of two allocates more."""
    blindfold()
    kept = symmetric(0)
    symmetric(0, 32 + 32 * RANK)
    del kept


def number() -> None:
    """The last of three ranks never comes to the second scope: the others wait in NCCL until the group is aborted."""
    group = dist.new_group([0, 1, 2], device_id=device)
    blindfold()
    kept = symmetric(0, group=group)
    if RANK != 2:
        caught(lambda: symmetric(0, 64, group))
    meet()
    if RANK == 2:
        group._get_backend(device).abort()
    del kept


def swapped_later() -> None:
    """Both tensors were used alike; then rank 1 reduces the other one. Known places are not compared again."""
    first, second = two_in_one_scope(1, 1)
    for tensor in (first, second, first if RANK == 0 else second):
        dist.all_reduce(tensor)


def capture() -> None:
    """A scope inside a capture registers at once."""
    memory._core = Blind()  # type: ignore[attr-defined,assignment]  # of that module alone
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
