"""What others do, written anew from a description of their algorithms: what tracehook's scopes are compared with."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple

import torch


class RawCommunicator(NamedTuple):
    """A communicator as those see it who do not go through torch: the raw pointer and the unique id it was made of."""

    comm: ctypes.c_void_p
    unique_id: ctypes.Array[ctypes.c_char]


def raw_communicator(group: Any, device: Any, number: int = 0) -> RawCommunicator:
    """Return the communicator of a torch group. torch keeps the unique id to itself: `number` stands in for it."""
    pointer = group._get_backend(device)._comm_ptr()
    return RawCommunicator(ctypes.c_void_p(pointer), (ctypes.c_char * 128)(*number.to_bytes(8, "little")))


def pool_over(allocate: Any, free: Any) -> torch.cuda.MemPool:
    """Return a pool of torch over two C functions, on the current device.

    It is never let go of: peers leave their windows behind, so the memory must not be freed before NCCL ends.
    """
    addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in (allocate, free))
    allocator = torch._C._cuda_customAllocator(*addresses)
    pool = torch.cuda.MemPool(allocator)
    for kept in (allocator, pool):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return pool


def leave() -> None:
    """End the process as it is: peers leave windows behind, so communicators and memory must not be given back."""
    torch.distributed.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)
