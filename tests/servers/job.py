"""A server's own communicator and symmetric memory, unchanged. Arguments: the server, the case.

A rank makes two tensors in the server's scope, fills them, and reduces the first. Cases: *alike*; *swapped*: the last
rank makes them in the opposite order; *unequal*: its first is larger; *missing*: it enters no scope; *mixed*: it
reduces ordinary memory.
"""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from server import MB, RANK, WORLD, end, reduce, start, tell

import tracehook

CASE = sys.argv[2]
IS_ODD = RANK == WORLD - 1 and CASE != "alike"
SIZES = {"first": 32, "second": 32}  # MiB: a segment each


def main() -> None:
    """Play the case."""
    communicator, group, context, _ = start()
    names = list(SIZES)[::-1] if IS_ODD and CASE == "swapped" else list(SIZES)
    tensors: dict[str, torch.Tensor] = {}
    raised = ""
    try:
        with contextlib.nullcontext() if IS_ODD and CASE == "missing" else context(group):
            for name in names:
                size = SIZES[name] * (1 + (IS_ODD and CASE == "unequal" and name == "first"))
                tensors[name] = torch.empty(size * MB // 4, device="cuda")
        dist.barrier()
        if IS_ODD and CASE == "mixed":
            tensors["first"] = torch.empty_like(tensors["first"])
        source = torch.full(tensors["first"].shape, float(RANK + 1))
        tensors["first"].copy_(source)
        tell(sum=float(reduce(communicator, tensors["first"])[0].cpu()))
    except (RuntimeError, AssertionError) as problem:
        raised = f"{type(problem).__name__}: {problem}"
    known = [(row["rank"], row["size"], row["held"] > 0) for row in tracehook.status()["communicators"]]
    tell(raised=raised, known=known)
    if CASE != "alike":
        time.sleep(2)  # a rank that does not take part hears within that time what the others waited for
        os._exit(0)
    end(communicator)


main()
