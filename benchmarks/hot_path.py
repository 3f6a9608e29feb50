"""One alloc+free pair of 4 KiB that the caching allocator serves from its cache, beside what torch has anyway.

A tracker cannot be detached, so each measurement is a process of its own, the kinds in turn; run.py starts them. Kinds:
*bare*, the least that a tracker can be; *hook*, ours; *group*, torch's own process group, which from 2.15 on has a
tracker; *group+hook*, both. Prints nanoseconds a pair: the best of many short loops, because on a shared machine a long
one is seldom left alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch
import torch.distributed as dist

PAIRS = 2_000
SECONDS = 2.0


def main(kind: str, library: str) -> None:
    functions = ctypes.CDLL(library)
    functions.best_pair_ns.argtypes, functions.best_pair_ns.restype = [ctypes.c_long, ctypes.c_double], ctypes.c_double
    torch.cuda.init()
    if kind == "bare":
        functions.attach_bare_tracker()
    if kind.endswith("hook"):
        import tracehook

        tracehook.enable()
        assert tracehook.status()["state"] == "on", tracehook.status()
    if kind.startswith("group"):
        here = torch.device("cuda", 0)
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=here)
    kept = torch.empty(4096, dtype=torch.uint8, device="cuda")  # so that the segment stays
    print(f"RESULT {functions.best_pair_ns(PAIRS, SECONDS)}", flush=True)
    del kept
    os._exit(0)  # a group of one rank: nothing to take leave of


if __name__ == "__main__":
    main(*sys.argv[1:3])
