"""A server's own communicator and symmetric memory, unchanged. Arguments: the server, the case.

A rank makes two tensors in the server's scope, fills them, and reduces the first. Cases: *alike*; *swapped*: the last
rank makes them in the opposite order; *unequal*: its first is larger; *missing*: it enters no scope; *mixed*: it
reduces ordinary memory.
"""

import contextlib
import ctypes
import json
import os
import sys
import tempfile
import time
from types import SimpleNamespace

import stand_ins
import torch
import torch.distributed as dist

import tracehook

SERVER, CASE = sys.argv[1:3]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_ODD = RANK == WORLD - 1 and CASE != "alike"
MB = 1 << 20
SIZES = {"first": 32, "second": 32}  # MiB: a segment each


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def scopes() -> tuple[object, object]:
    """Return the server's communicator, and what makes its scope."""
    if SERVER == "sglang":
        stand_ins.sglang()
        from sglang.srt.distributed.device_communicators import pynccl, pynccl_allocator

        made = pynccl.PyNcclCommunicator(dist.group.WORLD, RANK, is_symmetric_memory_enabled=True)
        coordinator = SimpleNamespace(pynccl_comm=made, unique_name="tp", world_size=WORLD)
        return made, lambda: pynccl_allocator.use_symmetric_memory(coordinator)
    stand_ins.vllm()
    from vllm.distributed.device_communicators import pynccl, pynccl_allocator

    pynccl._NCCL_SYMM_OPS_REGISTERED = True  # no operator for torch.compile
    made = pynccl.PyNcclCommunicator(dist.group.WORLD, RANK)
    return made, lambda: pynccl_allocator.nccl_symm_mem_context(made)


def reduce(communicator: object, tensor: torch.Tensor) -> torch.Tensor:
    """Sum over the ranks, by the server's function."""
    if SERVER == "sglang":
        with communicator.change_state(enable=True):
            communicator.all_reduce(tensor)
        return tensor
    return communicator.all_reduce(tensor, torch.empty_like(tensor))


def main() -> None:
    """Play the case."""
    torch.cuda.set_device(RANK)
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    tempfile.tempdir = tempfile.mkdtemp()  # the servers compile their allocator there
    communicator, scope = scopes()
    names = list(SIZES)[::-1] if IS_ODD and CASE == "swapped" else list(SIZES)
    tensors: dict[str, torch.Tensor] = {}
    raised = ""
    try:
        with contextlib.nullcontext() if IS_ODD and CASE == "missing" else scope():
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
    # The servers never end it, nor their windows. But at the end of the process their pools free the memory below.
    dist.barrier()
    ctypes.CDLL(stand_ins.LIBRARY).ncclCommAbort(communicator.comm)
    tell(left=tracehook.status()["communicators"])


main()
