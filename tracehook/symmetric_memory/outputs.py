"""Outputs of collectives, symmetric where the ranks' sizes are equal: what data-parallel attention and experts need.

Every function takes `sizes`, the lengths of the first dimension on each rank, and all ranks give the same list. So all
decide alike: equal sizes (or none given) are made in a symmetric scope, unequal ones in ordinary memory, which NCCL's
symmetric kernels could not use anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from tracehook.hook.groups import all_gather_single, any_exists, reduce_scatter_single, resolve_one
from tracehook.symmetric_memory.answers import local
from tracehook.symmetric_memory.public import symmetric

if TYPE_CHECKING:
    from torch import Tensor, device, dtype
    from torch.distributed import ProcessGroup

    from tracehook.symmetric_memory.pool_scope import Scope
    from tracehook.symmetric_memory.scope import NoScope


def empty(
    *shape: int,
    group: ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
    dtype: dtype | None = None,
    device: device | str | None = "cuda",
    operation: str | None = None,
    graph: bool = False,
) -> Tensor:
    """Return an uninitialised tensor, symmetric in `group` if the ranks' `sizes` are equal and the policy agrees.

    All ranks of the group call it at the same point of the program. It enters and leaves a
    :func:`tracehook.symmetric` scope, and raises the same errors. If the device has no memory left, it frees torch's
    cache and tries once more; torch does not do that inside a scope.

    The policy gets the operation, the type, and the tensor's bytes rounded down to a power of two. So tensors of many
    lengths make few questions.

    Args:
        shape: the tensor's dimensions on this rank.
        group: a process group; the default group if None.
        sizes: length of the first dimension on each rank, the same list on all of them; None: equal on all.
        dtype: as in ``torch.empty``.
        device: as in ``torch.empty``; the current CUDA device by default.
        operation: a hint for policies: the collective whose larger buffer this is, such as ``"all_reduce"``.
        graph: whether a captured CUDA graph will use it; see :func:`tracehook.symmetric`. True by itself in a capture
            if there is an `operation`.

    Returns:
        a tensor of this shape and type, with undefined values.

    Raises:
        TypeError: `shape` or `sizes` has something else than whole numbers, or `dtype` is no type.
        ValueError: `sizes` has not one entry for each rank.

    """
    import torch

    kind = dtype or torch.get_default_dtype()
    size = flat(shape)
    nbytes = _nbytes(size, kind)
    lengths = _lengths(sizes, _ranks(group), 0) if sizes is not None else ()
    return empty_in(_scope(group, lengths, kind, (operation, nbytes, graph)), size, kind, device)


def _scope(
    group: ProcessGroup | None, lengths: Sequence[int], dtype: dtype, hints: tuple[str | None, int, bool]
) -> Scope | NoScope:
    operation, nbytes, graph = hints
    if operation is None:
        return symmetric(group, disabled=not _equal(lengths), graph=graph)
    return symmetric(
        group,
        disabled=not _equal(lengths),
        graph=graph,
        operation=operation,
        nbytes=1 << nbytes.bit_length() >> 1,
        dtype=str(dtype).removeprefix("torch."),
    )


def empty_in(scope: Scope | NoScope, shape: Sequence[Any], dtype: dtype | None, device: device | str | None) -> Tensor:
    """Return an uninitialised tensor of a scope, which begins and ends here; see :func:`empty`."""
    import torch

    shape = tuple(shape)
    with scope:
        try:
            return torch.empty(shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError:
            if not scope.give_back_cache():
                raise
        return torch.empty(shape, dtype=dtype, device=device)


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None, op: Any = None) -> Tensor:
    """Reduce a copy of `tensor` over the ranks and return it. `tensor` keeps its values, and may be ordinary memory.

    All ranks of the group call it at the same point of the program. The result has no gradient. To save the copy, write
    the input into a tensor of :func:`empty` and call ``torch.distributed.all_reduce``.

    Args:
        tensor: a CUDA tensor of the same shape and type on every rank.
        group: a process group; the default group if None.
        op: a ``torch.distributed.ReduceOp``; the sum if None.

    Returns:
        a new symmetric tensor of the shape and type of `tensor`.

    Raises:
        RegistrationError, PoolLimitError: see :func:`tracehook.symmetric`.

    """
    import torch.distributed as dist

    local(tensor)
    if group is not None:
        resolve_one(group)  # `empty` would take several
    flat = empty(tensor.numel(), group=group, dtype=tensor.dtype, device=tensor.device, operation="all_reduce")
    out = flat.view(tensor.shape)
    out.copy_(tensor.detach())
    dist.all_reduce(out, dist.ReduceOp.SUM if op is None else op, group=group)
    return out


def all_gather_into_tensor(
    shard: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return the shards of all ranks, one after the other along the first dimension.

    All ranks of the group call it at the same point of the program. The result has no gradient.

    Args:
        shard: this rank's part, a CUDA tensor of shape (sizes[rank], ...).
        group: a process group; the default group if None.
        sizes: length of the first dimension on each rank, the same list on all of them; None: equal on all.

    Returns:
        a new tensor of shape (sum of sizes, ...), symmetric if the sizes are equal.

    Raises:
        ValueError: `sizes` has not one entry for each rank, or another one for this rank than `shard`; or `shard` has
            no dimension.
        RegistrationError, PoolLimitError: see :func:`tracehook.symmetric`.

    """
    import torch.distributed as dist

    rows = _rows(shard)
    ranks, rank = _place(group)
    lengths = _lengths(sizes, ranks, rows)
    shape = (sum(lengths), *shard.shape[1:])
    hints = ("all_gather", math.prod(shape) * shard.itemsize, False)
    out = empty_in(_scope(group, lengths, shard.dtype, hints), shape, shard.dtype, shard.device)
    if _equal(lengths):
        all_gather_single(out, shard, group)
    else:
        _expect(rows, lengths[rank], "the shard's first dimension")
        dist.all_gather(list(out.split(lengths)), shard, group=group)
    return out


def all_gather(shard: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Return the shards of all ranks as a list of views of the result of :func:`all_gather_into_tensor`; see there."""
    lengths = _lengths(sizes, _place(group)[0], _rows(shard))
    return list(all_gather_into_tensor(shard, group, sizes).split(lengths))


def reduce_scatter_tensor(
    whole: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None, op: Any = None
) -> Tensor:
    """Reduce `whole` over the ranks and return this rank's part of the first dimension.

    All ranks of the group call it at the same point of the program. The result has no gradient.

    Args:
        whole: a CUDA tensor of shape (sum of sizes, ...), the same shape on every rank.
        group: a process group; the default group if None.
        sizes: length of each rank's part, the same list on all ranks; None: equal parts.
        op: a ``torch.distributed.ReduceOp``; the sum if None.

    Returns:
        a new tensor of shape (sizes[rank], ...), symmetric if the sizes are equal.

    Raises:
        ValueError: there is no first dimension, the ranks cannot share it equally, or `sizes` does not fit it or the
            group.
        RegistrationError, PoolLimitError: see :func:`tracehook.symmetric`.

    """
    import torch.distributed as dist

    rows, (ranks, rank) = _rows(whole), _place(group)
    if rank < 0:
        raise ValueError("tracehook: this rank is no member of the group: only its members have a part of the result")
    if sizes is None and rows % ranks:
        raise ValueError(f"the first dimension is {rows}, which {ranks} ranks cannot share equally: pass sizes=")
    lengths = _lengths(sizes, ranks, rows // ranks)
    operator = dist.ReduceOp.SUM if op is None else op
    shape = (lengths[rank], *whole.shape[1:])
    hints = ("reduce_scatter", whole.nbytes, False)
    out = empty_in(_scope(group, lengths, whole.dtype, hints), shape, whole.dtype, whole.device)
    if _equal(lengths):
        reduce_scatter_single(out, whole, operator, group)
    else:
        _expect(rows, sum(lengths), "the input's first dimension")
        dist.reduce_scatter(out, list(whole.split(lengths)), op=operator, group=group)
    return out


def flat(shape: Sequence[Any]) -> Sequence[int]:
    """Return the dimensions, which a program gives one by one or as a tuple."""
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def _nbytes(shape: Sequence[Any], dtype: dtype) -> int:
    try:
        found: int = math.prod(map(index, shape)) * dtype.itemsize
    except (TypeError, AttributeError):  # torch writes many lines
        raise TypeError(f"tracehook.empty: expected whole numbers and a torch.dtype, got {shape}, {dtype!r}") from None
    return found


def _equal(lengths: Sequence[int]) -> bool:
    return len(set(lengths)) <= 1


def _ranks(group: Any) -> int:
    """Return the size of the group, -1 if this rank knows none."""
    import torch.distributed as dist

    if not any_exists():
        return -1
    found = dist.group.WORLD if group is None else group
    return found.size() if isinstance(found, dist.ProcessGroup) else -1


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """Return the size of the group and this rank's place in it; -1 for both if it has none."""
    found = resolve_one(group)
    return (found.size(), found.rank()) if found is not None else (-1, -1)


def _rows(tensor: Tensor) -> int:
    local(tensor)
    if not tensor.shape:
        raise ValueError("tracehook: expected a tensor of one dimension or more, got one of none: give tensor.view(1)")
    rows: int = tensor.shape[0]
    return rows


def _lengths(sizes: Sequence[int] | None, ranks: int, own: int) -> list[int]:
    if sizes is None:
        return [own] * ranks
    try:
        lengths = [index(size) for size in sizes]
    except TypeError:
        raise TypeError(f"tracehook: sizes is {sizes!r}: expected a whole number for each rank") from None
    if len(lengths) != ranks >= 0:
        raise ValueError(f"sizes has {len(lengths)} entries, the group has {ranks} ranks: give one for each")
    return lengths


def _expect(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what} is {found}, but sizes says {wanted}")
