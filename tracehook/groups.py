"""From torch's process groups to the communicators behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Found(NamedTuple):
    """A live communicator: raw ``ncclComm_t``, device index, and the group's name, which its ranks share."""

    pointer: int
    device: int
    name: str


def existing() -> Iterator[Found]:
    """Yield the NCCL communicator of every process group of this process that has one already.

    torch offers no list of communicators: the lazily made point-to-point ones (one per pair of ranks) are not found
    here. They are seen when they are made, if tracehook was enabled before.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    from torch.distributed import distributed_c10d

    world: Any = distributed_c10d._world
    for group in list(world.pg_map):
        backend = _nccl_backend(group)
        if backend is not None:
            name = f"group:{world.pg_names.get(group, '?')}"
            for ordinal, (device, pointer) in enumerate(_communicators(backend)):
                # One process may hold several; device numbers differ between ranks, their order need not.
                yield Found(pointer, device, f"{name}#{ordinal}" if ordinal else name)


def _communicators(backend: Any) -> list[tuple[int, int]]:
    """Return (device, pointer) of each of the backend's communicators: torch tells that of the current device only."""
    import torch

    found = []
    for device in range(torch.cuda.device_count()):
        # Looking must not make a context where the program has none.
        if torch._C._cuda_hasPrimaryContext(device):
            with torch.cuda.device(device):
                pointer = _pointer(backend)
            if pointer:
                found.append((device, pointer))
    return found


def _pointer(backend: Any) -> int:
    try:
        return int(backend._comm_ptr())
    except RuntimeError:
        return 0  # aborted, or ended otherwise: nothing to adopt


def _nccl_backend(group: Any) -> Any | None:
    import torch

    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None  # a group without a CUDA backend
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if hasattr(backend, "_comm_ptr") else None
