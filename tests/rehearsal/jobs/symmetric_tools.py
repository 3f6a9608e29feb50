"""What the jobs about symmetric memory share; they also run on real devices."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import tracehook
from tracehook.hook import groups

from common import MB, RANK, WORLD, nccl_calls, tell

T = TypeVar("T")
SIZE = 32  # MiB: a segment of its own in torch's allocator
REHEARSAL = "TRACEHOOK_EMU_DEVICES" in os.environ
IN_VAIN = os.environ.get("TEST_IN_VAIN")  # seconds
ENQUEUED = ("ncclAllReduce", "ncclCommWindowRegister", "ncclCommWindowDeregister")

_met = 0


def empty(size_mb: float = SIZE) -> torch.Tensor:
    """Return a tensor of the current device."""
    return torch.empty(int(size_mb * MB) // 4, device="cuda")


def symmetric(value: float, size_mb: float = SIZE, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return a tensor full of `value`, made in a scope."""
    with tracehook.symmetric(group):
        out = empty(size_mb)
    return refill(out, value)


def refill(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Fill by copying: kernels do nothing on emulated devices."""
    tensor.copy_(torch.full(tensor.shape, float(value)))
    return tensor


def two_in_one_scope(first: float, second: float, sizes: Sequence[int] = (SIZE, SIZE)) -> list[torch.Tensor]:
    """Return two tensors of one scope."""
    with tracehook.symmetric():
        made = [empty(size) for size in sizes]
    return [refill(tensor, value) for tensor, value in zip(made, (first, second), strict=True)]


def caught(act: Callable[[], T]) -> tuple[T | None, list[str] | None]:
    """Run; return the result, and class and text of what was raised."""
    try:
        result = act()
        torch.cuda.synchronize()
    except Exception as problem:
        return None, [type(problem).__name__, str(problem).split("\nException raised from")[0]]
    return result, None


def attempt(act: Callable[[], T]) -> T | None:
    """Run; tell what was raised, after how many seconds, and which calls reached NCCL."""
    calls = reached()
    begin = time.monotonic()
    result, error = caught(act)
    seconds = round(time.monotonic() - begin, 2)
    tell(error=error, seconds=seconds, reached=[now - then for now, then in zip(reached(), calls, strict=True)])
    return result


def reached() -> list[int]:
    """Return how often each of ENQUEUED was called; nothing is counted on real devices."""
    return [nccl_calls(name) for name in ENQUEUED] if REHEARSAL else [0] * len(ENQUEUED)


def reduced(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """Return the first element of the sum over the ranks; all elements must be equal."""
    dist.all_reduce(tensor, group=group)
    values = tensor.cpu()
    assert bool((values == values[0]).all()), values
    return float(values[0])


class Captured(NamedTuple):
    """One all-reduce of a copy of `source` in a window, captured and not replayed yet."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor
    result: torch.Tensor
    reason: str  # why the captured tensor is symmetric, or is not


def captured() -> Captured:
    """Follow the recipe of docs/symmetric.md: warm up in a scope on the stream of the graph, then capture."""
    source = refill(empty(), RANK + 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with tracehook.symmetric(graph=True):
            warm = empty()
        dist.all_reduce(warm)
        dist.all_reduce(warm)
        del warm
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with tracehook.symmetric():
            out = empty()
        out.copy_(source)
        dist.all_reduce(out)
        result = torch.empty_like(source)
        result.copy_(out)
        reason = tracehook.explain(out).reason
        del out  # the graph still uses its memory
    return Captured(graph, source, result, reason)


def works(group: dist.ProcessGroup | None = None) -> bool:
    """Whether an ordinary collective still gives the right sum."""
    ordinary = refill(empty(1), RANK + 1)
    return reduced(ordinary, group) == WORLD * (WORLD + 1) / 2


def windows() -> int:
    """How many windows this rank's groups have."""
    return sum(row["windows"] for row in tracehook.status()["windows"])


@contextmanager
def in_vain() -> Iterator[None]:
    """Wait for a rank that does not come only as long as TEST_IN_VAIN says, if it says so, and not for its time-out."""
    if IN_VAIN is None:
        yield
        return
    before, groups.timeout = groups.timeout, lambda _: float(IN_VAIN)
    try:
        yield
    finally:
        groups.timeout = before


def one_after_the_other(early: bool, act: Callable[[], object]) -> None:
    """Attempt it on the ranks that are early, in vain; then on the others, when these have given up."""
    if early:
        with in_vain():
            attempt(act)
    meet()
    if not early:
        attempt(act)


def in_vain_once_agreed(group: dist.ProcessGroup | None = None) -> None:
    """Do so from when all ranks have agreed to register: one of them then waits inside NCCL."""
    if IN_VAIN is None:
        return
    memory = _memory()
    found = memory.windows(group or dist.group.WORLD)
    found.connect()
    compare = found._plans.compare

    def agreed(*arguments: object) -> bool:
        are_all_here = compare(*arguments)
        memory._stalls._limit = float(IN_VAIN)
        groups.timeout = lambda _: float(IN_VAIN)
        return bool(are_all_here)

    found._plans.compare = agreed


def _memory() -> Any:
    from tracehook.symmetric_memory import state  # here: most jobs that use this module have no need of it

    return state.memory()


def meet(seconds: float = 60) -> None:
    """Wait for the other ranks, beside tracehook and NCCL."""
    global _met
    _met += 1
    store = dist.distributed_c10d._get_default_store()
    store.set(f"met {_met} {RANK}", "")
    store.wait([f"met {_met} {rank}" for rank in range(WORLD)], timedelta(seconds=seconds))
