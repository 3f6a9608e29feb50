"""Outputs of collectives, symmetric where the ranks' sizes are equal: what data-parallel attention and experts need.

Every function takes `sizes`, the lengths of the first dimension on each rank, and all ranks give the same list. So all
decide alike: equal sizes (or none given) are made in a symmetric scope, unequal ones in ordinary memory, which NCCL's
symmetric kernels could not use anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracehook.symmetric_memory.public import symmetric

if TYPE_CHECKING:
    from torch import Tensor, device, dtype
    from torch.distributed import ProcessGroup


def empty(
    *shape: int,
    group: ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
    dtype: dtype | None = None,
    device: device | str | None = "cuda",
) -> Tensor:
    """Return an uninitialised tensor, symmetric in `group` if the ranks' `sizes` are equal.

    All ranks of the group call it at the same point of the program. It is the beginning and the end of a
    :func:`tracehook.symmetric` scope, and raises what that raises. If the device has no memory left, it tries once
    more after torch gave back its cache, which torch does not do inside a scope.

    Args:
        shape: the tensor's dimensions on this rank.
        group: a process group; the default group if None.
        sizes: length of the first dimension on each rank, the same list on all of them; None: equal on all.
        dtype: as in ``torch.empty``.
        device: as in ``torch.empty``; the current CUDA device by default.

    """
    import torch

    scope = symmetric(group, disabled=not _equal(sizes))
    with scope:
        try:
            return torch.empty(*shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError:
            if not scope.give_back_cache():
                raise
        return torch.empty(*shape, dtype=dtype, device=device)


def all_gather_into_tensor(
    shard: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return the shards of all ranks, one after the other along the first dimension.

    Args:
        shard: this rank's part, of shape (sizes[rank], ...).
        group: a process group; the default group if None.
        sizes: length of the first dimension on each rank, the same list on all of them; None: equal on all.

    Returns:
        a tensor of shape (sum of sizes, ...), symmetric if the sizes are equal.

    """
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    lengths = _lengths(sizes, ranks, shard.shape[0])
    out = empty(sum(lengths), *shard.shape[1:], group=group, sizes=sizes, dtype=shard.dtype, device=shard.device)
    if _equal(sizes):
        dist.all_gather_into_tensor(out, shard, group=group)
    else:
        _expect(shard.shape[0], lengths[dist.get_rank(group)], "the shard's first dimension")
        dist.all_gather(list(out.split(lengths)), shard, group=group)
    return out


def all_gather(shard: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Return the shards of all ranks as a list; see :func:`all_gather_into_tensor`, of whose result they are views."""
    import torch.distributed as dist

    lengths = _lengths(sizes, dist.get_world_size(group), shard.shape[0])
    return list(all_gather_into_tensor(shard, group, sizes).split(lengths))


def reduce_scatter_tensor(
    whole: Tensor, group: ProcessGroup | None = None, sizes: Sequence[int] | None = None, op: Any = None
) -> Tensor:
    """Reduce `whole` over the ranks and return this rank's part of the first dimension.

    Args:
        whole: of shape (sum of sizes, ...), on every rank.
        group: a process group; the default group if None.
        sizes: length of each rank's part, the same list on all ranks; None: equal parts.
        op: a ``torch.distributed.ReduceOp``; the sum if None.

    Returns:
        a tensor of shape (sizes[rank], ...), symmetric if the sizes are equal.

    """
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if sizes is None and whole.shape[0] % ranks:
        raise ValueError(
            f"the first dimension is {whole.shape[0]}, which {ranks} ranks cannot share equally: pass sizes="
        )
    lengths = _lengths(sizes, ranks, whole.shape[0] // ranks)
    operator = dist.ReduceOp.SUM if op is None else op
    shape = (lengths[rank], *whole.shape[1:])
    out = empty(*shape, group=group, sizes=sizes, dtype=whole.dtype, device=whole.device)
    if _equal(sizes):
        dist.reduce_scatter_tensor(out, whole, op=operator, group=group)
    else:
        _expect(whole.shape[0], sum(lengths), "the input's first dimension")
        dist.reduce_scatter(out, list(whole.split(lengths)), op=operator, group=group)
    return out


def _equal(sizes: Sequence[int] | None) -> bool:
    return sizes is None or len(set(sizes)) <= 1


def _lengths(sizes: Sequence[int] | None, ranks: int, own: int) -> list[int]:
    if sizes is None:
        return [own] * ranks
    if len(sizes) != ranks:
        raise ValueError(f"sizes has {len(sizes)} entries, the group has {ranks} ranks: give one for each")
    return list(sizes)


def _expect(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what} is {found}, but sizes says {wanted}")
