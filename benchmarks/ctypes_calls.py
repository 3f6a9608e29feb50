"""What tracehook adds to a collective that a program calls through ctypes. One process, one device.

``ncclAllReduce`` is what ctypes finds, so tracehook's function; ``pncclAllReduce`` is the same function of NCCL, which
nobody interposes. Prints lines ``RESULT name value``; each value is from one repetition, the two taken in turn.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import tracehook

CALLS = 300
PARTS = 16  # of a repetition
REPETITIONS = 31
FLOAT, SUM, SYMMETRIC = 7, 0, 1
TYPES = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 2]


class UniqueId(ctypes.Structure):
    """What ncclUniqueId is."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


def nanoseconds(function: Any, arguments: tuple[Any, ...]) -> float:
    """Return what one call takes."""
    calls = range(CALLS)
    begin = time.perf_counter_ns()
    for _ in calls:
        function(*arguments)
    taken = (time.perf_counter_ns() - begin) / CALLS
    torch.cuda.synchronize()
    return taken


def best(functions: Sequence[Any], arguments: tuple[Any, ...]) -> list[float]:
    """Return what one call of each takes: the best of several short loops, in turn and in either order."""
    taken: list[list[float]] = [[] for _ in functions]
    for part in range(PARTS):
        places = range(len(functions))
        for place in reversed(places) if part % 2 else places:
            taken[place].append(nanoseconds(functions[place], arguments))
    return [min(each) for each in taken]


def measure(name: str, nccl: ctypes.CDLL, arguments: tuple[Any, ...]) -> None:
    """Print how much longer the call takes that tracehook sees."""
    both = (nccl.ncclAllReduce, nccl.pncclAllReduce)
    for function in both:
        function.argtypes = TYPES
        assert function(*arguments) == 0
    for _ in range(REPETITIONS):
        ours, plain = best(both, arguments)
        print(f"RESULT {name} {ours - plain}")
        print(f"RESULT {name}_alone {plain}")
        first, second = best((nccl.pncclAllReduce,) * 2, arguments)
        print(f"RESULT {name}_noise {first - second}")


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tracehook.enable()
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    unique, communicator = UniqueId(), ctypes.c_void_p()
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
    assert nccl.ncclCommInitRank(ctypes.byref(communicator), 1, unique, 0) == 0
    assert len(tracehook.status()["communicators"]) == 1, "tracehook knows it"
    memory = ctypes.c_void_p()
    size = ctypes.c_size_t(4 << 20)
    assert nccl.ncclMemAlloc(ctypes.byref(memory), size) == 0
    arguments = (memory, memory, 1, FLOAT, SUM, communicator, None)
    measure("ctypes_call", nccl, arguments)
    window = ctypes.c_void_p()
    assert nccl.ncclCommWindowRegister(communicator, memory, size, ctypes.byref(window), SYMMETRIC) == 0
    measure("ctypes_call_in_window", nccl, arguments)
    assert nccl.ncclCommWindowDeregister(communicator, window) == 0
    assert nccl.ncclCommDestroy(communicator) == 0


if __name__ == "__main__":
    main()
