"""A child that was forked in a scope of its parent leaves it: in order, by an exception, or by garbage collection."""

import gc
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import tracehook

from common import RANK, start, tell

device = start()
group = dist.group.WORLD


def forked(act: Callable[[], object]) -> int:
    """Return the exit status of a child that did that."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def reduced(tensor: torch.Tensor) -> tuple[float, bool]:
    """Return the sum over the ranks, and whether the tensor is symmetric."""
    tensor.fill_(RANK + 1)
    dist.all_reduce(tensor)
    return float(tensor.mean()), tracehook.is_symmetric(tensor, group)


def in_scope() -> Iterator[torch.Tensor]:
    """Yield a tensor of a scope, and leave the scope when the caller goes on."""
    with tracehook.symmetric(group):
        yield torch.empty(1 << 21, device=device)


def in_order() -> None:
    """Leave the parent's scope so."""
    scope.__exit__(None, None, None)


def by_exception() -> None:
    """Leave the parent's scope so."""
    scope.__exit__(SystemExit, SystemExit(0), None)


def by_collector() -> None:
    """Drop the parent's generator."""
    global generator
    del generator
    gc.collect()


statuses = []
for leave in (in_order, by_exception):
    scope = tracehook.symmetric(group)
    scope.__enter__()
    inside = torch.empty(1 << 23, device=device)
    if RANK == 0 or leave is in_order:
        statuses.append(forked(leave))
    scope.__exit__(None, None, None)
    tell(**{leave.__name__: reduced(inside)})

generator = in_scope()
inside = next(generator)
if RANK == 0:
    statuses.append(forked(by_collector))
assert next(generator, None) is None
tell(by_collector=reduced(inside), statuses=statuses)
dist.destroy_process_group()
