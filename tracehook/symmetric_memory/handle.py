"""Finds the ``ncclComm_t`` in what programs have of a communicator that torch did not make."""

from __future__ import annotations

import ctypes
from typing import Any

# In this order: a group coordinator of SGLang, one of vLLM, then what holds the handle itself (pynccl, CuPy; nccl4py).
_HOLDERS = ("pynccl_comm", "device_communicator", "comm", "ptr")
_ADDRESSES = 1 << 64  # above them all; True is 1


def handle(communicator: Any) -> int:
    """Return the address of a communicator.

    Args:
        communicator: an ``ncclComm_t`` as int or ``ctypes.c_void_p``, an object with one as ``comm`` or ``ptr``, or a
            group coordinator of SGLang or vLLM.

    Raises:
        TypeError: it is none of these.
        ValueError: it has no handle: the communicator was not made yet, or was destroyed.

    """
    found = _handle(communicator)
    if not 1 < found < _ADDRESSES:
        what = communicator if isinstance(communicator, int) else type(communicator).__name__
        raise ValueError(f"tracehook: {what} has no NCCL communicator: make the communicator before")
    return found


def _handle(found: Any) -> int:
    if isinstance(found, int):
        return found
    if isinstance(found, ctypes.c_void_p):
        return found.value or 0
    for name in _HOLDERS:
        inner = getattr(found, name, found)
        if inner is not found:
            return _handle(inner) if inner is not None else 0
    raise TypeError(
        f"tracehook: {type(found).__name__} is no communicator: expected an ncclComm_t as int or ctypes.c_void_p, an "
        "object with .comm, or a group coordinator of SGLang or vLLM"
    )
