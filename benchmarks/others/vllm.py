"""vLLM's symmetric memory: one pool, a snapshot of it at each context's end, and the addresses that were seen."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import defaultdict
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import native
import torch

from others import RawCommunicator, pool_over

_pool: Any = None
_device: int = -1
_graph_pool: tuple[int, int] | None = None
_library: Any = None
_snapshot: list[dict[str, Any]] | None = None  # of the pool, at the end of the last context
_registered: defaultdict[bytes, set[int]] = defaultdict(set)  # addresses, by unique id; never shrinks


def prepare(device: int) -> None:
    """Compile the native part and make the pool."""
    global _library, _pool, _device
    _library = ctypes.CDLL(str(native.peer_segments()))
    _library.vllm_register.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    ]
    _pool = pool_over(_library.vllm_allocate, _library.vllm_free)
    _device = device
    if sys.version_info < (3, 12):
        # Each snapshot of torch 2.11 takes a reference to True away; from Python 3.12 on there is none to lose.
        ctypes.c_ssize_t.from_address(id(True)).value += 1 << 40


def segments() -> int:
    """Return the number of segments of the pool."""
    return len(_pool.snapshot())


def is_symmetric_memory_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a block of the last snapshot begins where the tensor's storage does."""
    if _snapshot is None:
        return False
    address = tensor.untyped_storage().data_ptr()
    for segment in _snapshot:
        for block in segment["blocks"]:
            if block["address"] == address:
                return True
    return False


def symmetric_memory(comm: RawCommunicator, disabled: bool = False) -> AbstractContextManager[Any]:
    if disabled:
        return contextlib.nullcontext()
    return SymmetricMemoryContext(comm)


class SymmetricMemoryContext:
    """Allocations come from the pool; at the end all its segments are looked at, in the order of their addresses."""

    def __init__(self, comm: RawCommunicator) -> None:
        self.comm = comm
        self.pool = _pool.id
        self.device = _device
        self.capturing = torch.cuda.is_current_stream_capturing()

    def __enter__(self) -> SymmetricMemoryContext:
        if self.capturing:
            assert _graph_pool is not None, "the graph's pool is not known"
            torch._C._cuda_endAllocateToPool(self.device, _graph_pool)
        torch._C._cuda_beginAllocateCurrentThreadToPool(self.device, self.pool)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _snapshot
        torch._C._cuda_endAllocateToPool(self.device, self.pool)
        torch._C._cuda_releasePool(self.device, self.pool)
        _snapshot = _pool.snapshot()
        known = _registered[bytes(self.comm.unique_id)]
        for segment in _snapshot:
            if segment["address"] not in known:
                window = ctypes.c_void_p()
                result = _library.vllm_register(
                    self.comm.comm, segment["address"], segment["total_size"], ctypes.byref(window)
                )
                assert result == 0, f"NCCL error {result}"
                known.add(segment["address"])
        if self.capturing:
            torch._C._cuda_beginAllocateCurrentThreadToPool(self.device, _graph_pool)
