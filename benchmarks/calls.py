"""What the interposer adds to a call, and what a new communicator costs over 1,000 segments. One process, one device.

Prints lines ``RESULT name value``; each value is from one repetition, the things compared taken in turn.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist

os.environ.setdefault("SYMM_REGISTER_LOCAL", "all")  # segments of cudaMalloc too, which NCCL cannot use

import tracehook
from tracehook.hook.service import service

CALLS = 20_000
SEGMENTS = 1_000
REPETITIONS = 31


def main(library: str) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=device)
    dist.all_reduce(torch.ones(4, device=device))
    pointer = ctypes.c_void_p(dist.group.WORLD._get_backend(device)._comm_ptr())

    caller = ctypes.CDLL(library)
    tracehook.enable()
    for name in ("time_empty_calls", "time_grouped_calls", "time_registrations"):
        getattr(caller, name).restype = ctypes.c_double

    for name in ("time_empty_calls", "time_grouped_calls"):
        for _ in range(REPETITIONS):
            with_hook = getattr(caller, name)(pointer, CALLS, 0) / CALLS
            without = getattr(caller, name)(pointer, CALLS, 1) / CALLS
            print(f"RESULT {name} {with_hook - without}")

    kept = [torch.empty(12 << 20, dtype=torch.uint8, device=device) for _ in range(SEGMENTS)]
    segments = tracehook.status()["segments"]
    tracehook.disable()
    from tracehook import _core

    rows = [(row.address, row.size) for row in _core.segments()]
    addresses = (ctypes.c_void_p * segments)(*(address for address, _ in rows))
    sizes = (ctypes.c_size_t * segments)(*(size for _, size in rows))
    # The log's thread would compete for the GIL, which this loop needs back after each switch, and a new communicator
    # does not. So the log is written between the measurements.
    journal = service()._journal
    journal.stop_thread()
    for _ in range(REPETITIONS):
        journal.flush()
        bare = caller.time_registrations(pointer, addresses, sizes, segments)
        begin = time.perf_counter_ns()
        _core.set_registering(True)  # what a new communicator gets: every segment of the ledger
        ours = time.perf_counter_ns() - begin
        assert tracehook.status()["communicators"][0]["held"] == segments
        _core.set_registering(False)
        print(f"RESULT new_communicator_ratio {ours / bare}")
        print(f"RESULT bare_register_ns {bare / segments}")
    del kept
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
