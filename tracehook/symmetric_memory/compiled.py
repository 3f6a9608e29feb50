"""What torch.compile makes of `outputs`: operators that it calls and does not look into. Eager code goes past them.

A compiler turns what writes in place (``out=``, ``dist.all_reduce``) into what makes a new tensor, in memory that it
plans itself. So a collective stays in a window only if one operator makes the output and calls the collective.

The operators are registered when this module is imported: at the first use of one of its functions, be it in a trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from tracehook.symmetric_memory import outputs

P = ParamSpec("P")
R = TypeVar("R")


def _group(name: str) -> Any:
    return _resolve_process_group(name) if name else None


def _name(group: Any) -> str:
    """Return what a graph keeps of a group. The default group has no name: the next one may serve the same graph."""
    return group.group_name if group is not None else ""


def _operator(arguments: str, fake: Callable[..., Tensor]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register ``tracehook::NAME`` for a function _NAME; `fake` makes an output of the same shape from fake inputs."""
    schema = f"({arguments}) -> Tensor"

    def register(real: Callable[P, R]) -> Callable[P, R]:
        name = real.__name__.removeprefix("_")
        made = torch.library.custom_op(f"tracehook::{name}", real, mutates_args=(), schema=schema)
        made.register_fake(fake)
        registered: Callable[P, R] = getattr(torch.ops.tracehook, name)
        return registered

    return register


def _empty_fake(shape: Any, dtype: Any, device: Any, *_: Any) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _reduced_fake(tensor: Tensor, *_: Any) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _gathered_fake(shard: Tensor, sizes: Any, group: str) -> Tensor:
    rows = shard.shape[0] * dist.get_world_size(_group(group)) if sizes is None else sum(sizes)
    return shard.new_empty(rows, *shard.shape[1:])


def _scattered_fake(whole: Tensor, sizes: Any, group: str, _: str) -> Tensor:
    found = _group(group)
    rows = whole.shape[0] // dist.get_world_size(found) if sizes is None else sizes[dist.get_rank(found)]
    return whole.new_empty(rows, *whole.shape[1:])


@_operator(
    "SymInt[] shape, ScalarType? dtype, Device? device, SymInt[]? sizes, str group, str? operation, bool graph",
    _empty_fake,
)
def _empty(
    shape: Sequence[int],
    dtype: torch.dtype | None,
    device: torch.device | None,
    sizes: Sequence[int] | None,
    group: str,
    operation: str | None,
    graph: bool,
) -> Tensor:
    hints: dict[str, Any] = {"operation": operation, "graph": graph}
    return outputs.empty(*shape, group=_group(group), sizes=sizes, dtype=dtype, device=device, **hints)


@_operator("Tensor tensor, str group, str op", _reduced_fake)
def _all_reduce(tensor: Tensor, group: str, op: str) -> Tensor:
    return outputs.all_reduce(tensor, _group(group), getattr(dist.ReduceOp, op))


@_operator("Tensor shard, SymInt[]? sizes, str group", _gathered_fake)
def _all_gather_into_tensor(shard: Tensor, sizes: Sequence[int] | None, group: str) -> Tensor:
    return outputs.all_gather_into_tensor(shard, _group(group), sizes)


@_operator("Tensor whole, SymInt[]? sizes, str group, str op", _scattered_fake)
def _reduce_scatter_tensor(whole: Tensor, sizes: Sequence[int] | None, group: str, op: str) -> Tensor:
    return outputs.reduce_scatter_tensor(whole, _group(group), sizes, getattr(dist.ReduceOp, op))


def _beside(eager: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Make the function that programs call: `eager`, or in a trace what it decorates."""

    def decorate(traced: Callable[..., R]) -> Callable[P, R]:
        @functools.wraps(eager)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            return traced(*args, **kwargs) if torch.compiler.is_compiling() else eager(*args, **kwargs)

        return either

    return decorate


@_beside(outputs.empty)
def empty(
    *shape: int,
    group: Any = None,
    sizes: Any = None,
    dtype: Any = None,
    device: Any = "cuda",
    operation: Any = None,
    graph: bool = False,
) -> Tensor:
    """Make the output by the operator."""
    return _empty(list(outputs.flat(shape)), dtype, device, sizes, _name(group), operation, graph)


@_beside(outputs.all_reduce)
def all_reduce(tensor: Tensor, group: Any = None, op: Any = None) -> Tensor:
    """Reduce by the operator."""
    return _all_reduce(tensor, _name(group), _operation(op))


@_beside(outputs.all_gather_into_tensor)
def all_gather_into_tensor(shard: Tensor, group: Any = None, sizes: Any = None) -> Tensor:
    """Gather by the operator."""
    return _all_gather_into_tensor(shard, sizes, _name(group))


@_beside(outputs.all_gather)
def all_gather(shard: Tensor, group: Any = None, sizes: Any = None) -> list[Tensor]:
    """Gather by the operator, and split what it returns."""
    whole = _all_gather_into_tensor(shard, sizes, _name(group))
    return list(whole.split(shard.shape[0] if sizes is None else list(sizes)))


@_beside(outputs.reduce_scatter_tensor)
def reduce_scatter_tensor(whole: Tensor, group: Any = None, sizes: Any = None, op: Any = None) -> Tensor:
    """Reduce and scatter by the operator."""
    return _reduce_scatter_tensor(whole, sizes, _name(group), _operation(op))


def _operation(op: Any) -> str:
    """Return the name of a ``torch.distributed.ReduceOp``: an operator takes no such object."""
    return "SUM" if op is None else op.name
