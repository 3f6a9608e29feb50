"""One alloc+free pair of 4 KB that the caching allocator serves from its cache: bare tracker, and our hook.

A tracker cannot be detached, so each measurement is a process of its own, the two kinds in turn; run.py starts them.
Prints nanoseconds a pair: the best of many short loops, because on a shared machine a long one is seldom left alone.
"""

from __future__ import annotations

import ctypes
import sys
import time

import torch

PAIRS = 2_000
SECONDS = 2.0


def main(kind: str, library: str) -> None:
    torch.cuda.init()
    if kind == "bare":
        ctypes.CDLL(library).attach_bare_tracker()
    elif kind == "hook":
        import tracehook

        tracehook.enable()
        assert tracehook.status()["state"] == "on", tracehook.status()
    allocate, free = (
        torch._C._cuda_cudaCachingAllocator_raw_alloc,
        torch._C._cuda_cudaCachingAllocator_raw_delete,
    )
    stream = torch.cuda.current_stream().cuda_stream
    kept = allocate(4096, stream)  # so that the segment stays
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter_ns()
        for _ in range(PAIRS):
            free(allocate(4096, stream))
        best = min(best, (time.perf_counter_ns() - begin) / PAIRS)
    free(kept)
    print(f"RESULT {best}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
