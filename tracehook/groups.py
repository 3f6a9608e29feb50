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
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    from torch.distributed import distributed_c10d

    world: Any = distributed_c10d._world
    for group in list(world.pg_map):
        backend = _nccl_backend(group)
        pointer = int(backend._comm_ptr()) if backend is not None else 0
        if pointer:
            device = getattr(group, "bound_device_id", None)
            index = device.index if device is not None else torch.cuda.current_device()
            yield Found(pointer, index, f"group:{world.pg_names.get(group, '?')}")


def _nccl_backend(group: Any) -> Any | None:
    import torch

    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None  # a group without a CUDA backend
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if hasattr(backend, "_comm_ptr") else None
