"""A communicator that nccl4py or CuPy makes, with the modules unchanged. Arguments: who makes it, the case.

A rank allocates two buffers, registers a window for each, and reduces the first buffer. Cases: *alike*; *swapped*: the
last rank registers in the opposite order; *unequal*: its first buffer is larger; *configured* and *misconfigured*, by
nccl4py alone: the all-reduce has a configuration, which is another one on the last rank.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tracehook

WHO, CASE = sys.argv[1:3]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_ODD = RANK == WORLD - 1 and CASE != "alike"
COUNT = 1 << 20  # floats
SYMMETRIC = 1

sys.path.insert(0, os.environ["FETCHED"])  # see fetch.py


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def count(name: str) -> int:
    """Return how often this process called a function of the emulated NCCL."""
    ask = ctypes.CDLL(None).emu_nccl_call_count
    ask.restype = ctypes.c_uint64
    return int(ask(name.encode()))


def shared(make: Callable[[], Any]) -> Any:
    """Return on all ranks what rank 0 makes."""
    made = [make() if RANK == 0 else None]
    dist.broadcast_object_list(made)
    return made[0]


class ByNccl4py:
    """All by nccl4py: its communicator, its memory, its windows."""

    def __init__(self) -> None:
        import nccl.core
        import nccl.core.interop.torch

        self.nccl = nccl.core
        unique = shared(lambda: bytes(nccl.core.get_unique_id()))
        self.made = nccl.core.Communicator.init(WORLD, RANK, nccl.core.UniqueId.from_bytes(unique))

    def buffer(self, count: int) -> torch.Tensor:
        """Allocate NCCL's memory."""
        return self.nccl.interop.torch.empty(count, dtype=torch.float32)

    def window(self, tensor: torch.Tensor) -> None:
        """Register it."""
        self.made.register_window(tensor, flags=self.nccl.WindowFlag.COLL_SYMMETRIC)

    def reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the ranks."""
        most = {"configured": 4, "misconfigured": 4 + RANK}.get(CASE)
        config = self.nccl.NCCLCollConfig(max_ctas=most) if most else None
        self.made.allreduce(tensor, tensor, self.nccl.SUM, config=config)

    def end(self) -> None:
        """End the communicator; nccl4py ends the windows before."""
        self.made.destroy()


class ByCupy:
    """CuPy's communicator, on torch's memory.

    CuPy has no function for windows: a program calls NCCL's own, by ctypes.
    """

    def __init__(self) -> None:
        from cupy_backends.cuda.libs import nccl

        self.nccl = nccl
        self.made = nccl.NcclCommunicator(WORLD, shared(nccl.get_unique_id), RANK)
        self.pool = torch.cuda.MemPool(dist.group.WORLD._get_backend(torch.device("cuda")).mem_allocator)
        self.library = ctypes.CDLL("libnccl.so.2")
        self.windows: list[ctypes.c_void_p] = []

    def buffer(self, count: int) -> torch.Tensor:
        """Allocate NCCL's memory, through torch."""
        with torch.cuda.use_mem_pool(self.pool):
            return torch.empty(count, device="cuda")

    def window(self, tensor: torch.Tensor) -> None:
        """Register it."""
        made, size = ctypes.c_void_p(), ctypes.c_size_t(tensor.nbytes)
        place = ctypes.c_void_p(self.made.comm), ctypes.c_void_p(tensor.data_ptr())
        if result := self.library.ncclCommWindowRegister(*place, size, ctypes.byref(made), SYMMETRIC):
            raise RuntimeError(f"ncclCommWindowRegister: {result}")
        self.windows.append(made)

    def reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the ranks."""
        place, nccl = tensor.data_ptr(), self.nccl
        self.made.allReduce(place, place, tensor.numel(), nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)

    def end(self) -> None:
        """End the windows and the communicator."""
        for window in self.windows:
            self.library.ncclCommWindowDeregister(ctypes.c_void_p(self.made.comm), window)
        self.made.destroy()


def main() -> None:
    """Play the case."""
    torch.cuda.set_device(RANK)
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=RANK, world_size=WORLD)
    caller = ByNccl4py() if WHO == "nccl4py" else ByCupy()
    tell(known=[(row["rank"], row["size"], row["device"]) for row in tracehook.status()["communicators"]])
    buffers = [caller.buffer(COUNT * (1 + (IS_ODD and CASE == "unequal"))), caller.buffer(COUNT)]
    raised = ""
    try:
        for buffer in buffers[::-1] if IS_ODD and CASE == "swapped" else buffers:
            caller.window(buffer)
        buffers[0].copy_(torch.full(buffers[0].shape, RANK + 1.0))
        caller.reduce(buffers[0])
        torch.cuda.synchronize()
        tell(sum=float(buffers[0][0].cpu()))
    except Exception as problem:  # each has a class of its own
        raised = f"{type(problem).__name__}: {problem}"
    names = ("ncclCommWindowRegister", "ncclAllReduce", "ncclAllReduceConfig")
    tell(raised=raised, calls={name: count(name) for name in names})
    dist.all_gather_object([None] * WORLD, RANK)  # nobody ends it while another uses it
    if CASE != "alike":
        os._exit(0)
    caller.end()
    tell(left=tracehook.status()["communicators"])


main()
