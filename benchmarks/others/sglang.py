"""SGLang's symmetric memory: one pool, and a watermark for each communicator into the list of its segments."""

from __future__ import annotations

import contextlib
import ctypes
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import native
import torch

from others import RawCommunicator, pool_over

enabled = True  # the server's flag
_pool: Any = None
_device: int = -1
_graph_pool: tuple[int, int] | None = None
_active: SymmetricMemoryContext | None = None
_registering: SymmetricMemoryContext | None = None  # for a watchdog's report
_library: Any = None


def prepare(device: int) -> None:
    """Compile the native part and make the pool."""
    global _library, _pool, _device
    _library = ctypes.CDLL(str(native.peer_segments()))
    _library.sglang_register.argtypes = [ctypes.c_void_p]
    _library.sglang_registered.argtypes = [ctypes.c_void_p]
    _library.sglang_registered.restype = ctypes.c_size_t
    _library.sglang_segments.argtypes = [ctypes.POINTER(ctypes.c_size_t)]
    _library.sglang_segments.restype = ctypes.c_size_t
    _pool = pool_over(_library.sglang_allocate, _library.sglang_free)
    _device = device


def set_graph_pool(pool: tuple[int, int]) -> None:
    global _graph_pool
    _graph_pool = pool


def registered(comm: RawCommunicator) -> int:
    """Return how many windows the communicator has."""
    return int(_library.sglang_registered(comm.comm))


def segments() -> tuple[int, int]:
    """Return number and bytes of the pool's segments."""
    size = ctypes.c_size_t()
    return int(_library.sglang_segments(ctypes.byref(size))), size.value


def use_symmetric_memory(comm: RawCommunicator, disabled: bool = False) -> AbstractContextManager[Any]:
    if disabled or not enabled:
        return contextlib.nullcontext()
    return SymmetricMemoryContext(comm)


class SymmetricMemoryContext:
    """Allocations of this thread come from the pool; at the end, what the communicator lacks is registered with it."""

    def __init__(self, comm: RawCommunicator) -> None:
        self.pool = _pool.id
        self.device = _device
        self.capturing = torch.cuda.is_current_stream_capturing()
        self.comm = comm.comm.value

    def __enter__(self) -> SymmetricMemoryContext:
        global _active
        if self.capturing:
            assert _graph_pool is not None, "the graph's pool is not known"
            torch._C._cuda_endAllocateToPool(self.device, _graph_pool)
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.device, self.pool)
        _active = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active, _registering
        torch._C._cuda_endAllocateToPool(self.device, self.pool)
        torch._C._cuda_releasePool(self.device, self.pool)
        _registering = self
        result = _library.sglang_register(self.comm)
        _registering = None
        assert result == 0, f"NCCL error {result}"
        if self.capturing:
            torch._C._cuda_beginAllocateCurrentThreadToPool(self.device, _graph_pool)
        _active = None
