"""Makes and registers memory at the start of a program, so that it registers nothing later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracehook.hook.torch_modes import empty_bytes, past_modes
from tracehook.symmetric_memory.answers import is_bytes
from tracehook.symmetric_memory.public import symmetric

if TYPE_CHECKING:
    from tracehook.symmetric_memory.public import Groups

_SMALL = 1 << 20  # bytes: up to here PyTorch takes tensors from segments of their own, which have 2 MiB


def reserve(
    nbytes: int,
    group: Groups = None,
    *,
    communicator: Any = None,
    graph: bool = False,
    small_nbytes: int = 2 << 20,
) -> None:
    """Grow the pool of `group`, and register the new memory with the group, so that later scopes can use it.

    All ranks of the group call it at the same point of the program, with the same numbers. It enters a
    :func:`tracehook.symmetric` scope, makes tensors of these sizes, and drops them. It raises the same errors as such a
    scope. PyTorch keeps the memory in the pool until :func:`tracehook.trim`, for tensors on the stream that is current
    now. If the tensors of a later scope fit, that scope registers nothing and waits for no other rank.

    Args:
        nbytes: bytes for tensors of more than 1 MiB, in one piece. Free memory that only some ranks have does not help.
        group: a process group with an NCCL backend, or several; the default group if None.
        communicator: instead of a group; see :func:`tracehook.symmetric`.
        graph: reserve memory of captured graphs, which other tensors do not use.
        small_nbytes: bytes for tensors of up to 1 MiB.

    Raises:
        ValueError: a number of bytes is negative, or no whole number.
        PoolLimitError: the pools would pass ``SYMM_REGISTER_POOL_LIMIT``.
        torch.OutOfMemoryError: the device has no such piece. The other ranks raise a RegistrationFailed that says so.

    """
    for given in (nbytes, small_nbytes):
        if not is_bytes(given):
            raise ValueError(f"tracehook.reserve: expected bytes, got {given!r}: give a whole number, such as 1 << 30")
    large = [max(nbytes, _SMALL + 1)] if nbytes else []
    sizes = large + [_SMALL] * -(-small_nbytes // _SMALL)
    with symmetric(group, communicator=communicator, graph=graph), past_modes():
        made = [empty_bytes(size) for size in sizes]
    del made
