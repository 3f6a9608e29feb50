"""A thread that did not choose its device is the first to ask about a group without one: its device is the first."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from tracehook.ipc import PeerGroup

from common import RANK, start, tell

device = start(bind=False)
thread = ThreadPoolExecutor(1)


def on_thread(act: Callable[[], Any]) -> Any:
    """Return what an act gives on the other thread."""
    return thread.submit(act).result()


def scope(group: Any = None) -> torch.Tensor:
    """Return a tensor of a scope."""
    with tracehook.symmetric(group):
        return torch.empty(1 << 18, device=device)


def summed(tensor: torch.Tensor) -> bool:
    """Whether the ranks' sum is right."""
    tensor.copy_(torch.full(tensor.shape, float(RANK)))
    dist.all_reduce(tensor)
    return bool((tensor.cpu() == sum(range(dist.get_world_size()))).all())


def peers() -> torch.device:
    """Return the device of a group of peers."""
    with PeerGroup() as group:
        return group.device


assert on_thread(torch.cuda.current_device) == 0
ordinary = torch.empty(1 << 18, device=device)
match sys.argv[1]:
    case "scope":
        first = on_thread(scope)
        own = scope()
        tell(sums=[summed(first), summed(own)], symmetric=[tracehook.is_symmetric(each) for each in (first, own)])
    case "explain":
        summed(ordinary)
        own = scope()
        tell(sums=[summed(own)], reason=on_thread(lambda: tracehook.explain(own).reason))
    case "peers":
        assert on_thread(peers) == device
        assert summed(ordinary)
    case "subgroup":
        summed(ordinary)
        torch.zeros(1, device="cuda:0")
        group = dist.new_group()
        with on_thread(lambda: tracehook.symmetric(group)):
            own = torch.empty(1 << 18, device=device)
        dist.all_reduce(own, group=group)
        tell(symmetric=tracehook.is_symmetric(own, group))
    case "beside":
        summed(ordinary)
        group = dist.new_group()
        if RANK == 0:
            first = on_thread(lambda: scope(group))
        dist.all_reduce(ordinary)
        if RANK != 0:
            first = on_thread(lambda: scope(group))
        tell(symmetric=tracehook.is_symmetric(first, group))
dist.destroy_process_group()
