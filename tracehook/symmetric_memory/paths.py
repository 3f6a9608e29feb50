"""What tracehook knows of a collective on these tensors, put to the table of NCCL's rules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracehook import _core
from tracehook.nccl.paths import Path, path_of
from tracehook.symmetric_memory.answers import Asked, Explanation, path_without_windows, span
from tracehook.symmetric_memory.surroundings import surroundings

if TYPE_CHECKING:
    import torch

    from tracehook.symmetric_memory.windows import GroupWindows

_ONE_SIZE = ("all_reduce", "broadcast", "reduce")  # their buffers are equal


def path(asked: Asked, tensor: torch.Tensor, found: GroupWindows | None, answer: Explanation) -> Path:
    """Return the path of a collective that fills `tensor`, and reads `asked.other` or works in place."""
    if found is None or answer.reason == "other_device":
        return path_without_windows(asked, answer)
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
    return bool(communicator is not None and tensor.is_cuda and communicator.holds(tensor.data_ptr(), span(tensor)))


def _counted(operation: str, tensor: torch.Tensor, source: torch.Tensor, ranks: int) -> int:
    """Bytes of NCCL's count: see :func:`tracehook.nccl.paths.path_of`."""
    nbytes = min(tensor.nbytes, source.nbytes)
    if operation not in _ONE_SIZE and (operation.startswith("all_to_all") or source is tensor):
        nbytes = -(-nbytes // ranks)
    return int(nbytes)
