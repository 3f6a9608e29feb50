"""Why a tensor is, or is not, symmetric: the reason codes and their sentences; and the path of a collective on it."""

from __future__ import annotations

import os

import torch

from tracehook import _core
from tracehook.hook.groups import NO_GROUP, any_exists
from tracehook.nccl.paths import Path, path_of
from tracehook.policies.base import Answer
from tracehook.symmetric_memory.answers import ENDED, Asked, Explanation, path_without_windows, place
from tracehook.symmetric_memory.pools import Pools
from tracehook.symmetric_memory.surroundings import surroundings
from tracehook.symmetric_memory.windows import GroupWindows

_ONE_SIZE = ("all_reduce", "broadcast", "reduce")  # their buffers are equal


def explain(
    tensor: torch.Tensor, nbytes: int, found: GroupWindows | None, pools: Pools, asked: Asked | None
) -> Explanation:
    """See :func:`tracehook.explain`. `nbytes` is the distance from the tensor's first to its last byte."""
    answer = _explained(tensor, nbytes, found, pools)
    return answer if asked is None else answer.with_path(_path(asked, tensor, found, answer))


def _explained(tensor: torch.Tensor, nbytes: int, found: GroupWindows | None, pools: Pools) -> Explanation:
    if found is None:
        return _no("no_communicator", "this rank is no member of the group" if any_exists() else NO_GROUP)
    address, about = tensor.data_ptr(), found.about
    if tensor.device.index != found.facts.device:
        return _no("other_device", f"the tensor is on {tensor.device}, {about} on cuda:{found.facts.device}")
    segment = _core.pool_segment_at(address)
    if not segment:
        return _outside_of_pools(tensor, found)
    communicator = found.communicator()
    if communicator is None:
        if found.was_made():
            return _no("no_communicator", f"{about} has no communicator: {ENDED}")
        return _no("no_communicator", f"{about} has no communicator yet: it is made by the first collective or scope")
    if communicator.holds(address, nbytes):
        return Explanation(
            True, "symmetric", f"all of its {nbytes} bytes lie in a window of {about}{_held(communicator)}"
        )
    if not communicator.missing([segment]):
        return _no("outside", f"it begins in a window of {about} and ends outside it")
    if found.refused is not None:
        return _no(*found.refused)
    if segment in found.deferred:
        return _no(
            "deferred",
            "it was made during a capture, or in a group of NCCL calls, where nothing can be registered: call "
            f"tracehook.sync for {about} after it",
        )
    if found.last_failure is not None:
        return _no(*found.last_failure)
    pool = next(row.pool for row in _core.pool_segments() if row.id == segment)
    return _no(
        "not_registered",
        f"it lies in pool {pools.name(pool)!r}, but in no window of {about}: it was made in a scope of another group, "
        "or in one that ended with an exception",
    )


def _held(communicator: _core.Communicator) -> str:
    """Say what keeps windows that nobody uses."""
    live = communicator.device_communicators
    if not live:
        return ""
    return f", which stays while its {live} device communicator{'s' if live > 1 else ''} (ncclDevCommCreate) live"


def _outside_of_pools(tensor: torch.Tensor, found: GroupWindows) -> Explanation:
    mapped = _core.range_at(tensor.data_ptr())
    if mapped is not None:
        return _no(
            "expandable_segment",
            f"it lies in an expandable segment ({mapped[1] >> 20} MiB are mapped there), which changes its size in "
            "place, and nothing that is registered with NCCL can: make it inside `with tracehook.symmetric(group)`",
        )
    refusing = [repr(policy) for policy, answer in sorted(found.choices, key=str) if answer is Answer.NONE]
    if not refusing:
        return _no("not_in_pool", "it is ordinary memory: make it inside `with tracehook.symmetric(group)`")
    # Which scope a tensor was made in is not kept. If all had ordinary memory, only the policy is to blame.
    always = all(answer is Answer.NONE for _, answer in list(found.choices))
    who, scopes = f"policy {' and policy '.join(refusing)}", f"{'all' if always else 'some'} scopes of {found.about}"
    text = f"it is ordinary memory: {who} answered NONE for {scopes}, or it was made outside of scopes"
    return _no("policy" if always else "not_in_pool", text)


def _no(reason: str, text: str) -> Explanation:
    return Explanation(False, reason, text)


def _path(asked: Asked, tensor: torch.Tensor, found: GroupWindows | None, answer: Explanation) -> Path:
    """Return the path of a collective that fills `tensor`, and reads `asked.other` or works in place."""
    if found is None or answer.reason == "other_device":
        return path_without_windows(answer)
    ranks, communicator = found.facts.ranks, found.communicator()
    source = tensor if asked.other is None else asked.other
    dtype = asked.dtype or tensor.dtype
    around = surroundings(found.facts, found.domain())
    return path_of(
        asked.operation,
        str(dtype),
        asked.reduction,
        sends_in_window=_in_window(source, communicator),
        receives_in_window=_in_window(tensor, communicator),
        nbytes=_counted(asked.operation, tensor, source, ranks),
        ranks=ranks,
        version=_core.nccl_version(),
        domain=around.domain or None,
        policy=around.policy,
        capability=around.capability,
        itemsize=dtype.itemsize,
        settings=os.environ,
    )


def _in_window(tensor: torch.Tensor, communicator: _core.Communicator | None) -> bool:
    at = place(tensor) if tensor.is_cuda else None
    return at is not None and communicator is not None and bool(communicator.holds(*at))


def _counted(operation: str, tensor: torch.Tensor, source: torch.Tensor, ranks: int) -> int:
    """Bytes of NCCL's count: see :func:`tracehook.nccl.paths.path_of`."""
    nbytes = min(tensor.nbytes, source.nbytes)
    if operation not in _ONE_SIZE and (operation.startswith("all_to_all") or source is tensor):
        nbytes = -(-nbytes // ranks)
    return int(nbytes)
