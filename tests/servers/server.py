"""A server's communicator and its scope, for the jobs of this folder. The first argument names the server."""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import stand_ins
import torch
import torch.distributed as dist

import tracehook

SERVER = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MB = 1 << 20


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


class Server(NamedTuple):
    """What the jobs use of a server."""

    communicator: Any
    group: Any  # what its context takes
    context: Callable[..., Any]
    module: ModuleType  # of symmetric memory

    def scope(self) -> Any:
        """Return the server's context for its group."""
        return self.context(self.group)


def start() -> Server:
    """Start as a process of the server does, its plug-ins first."""
    torch.cuda.set_device(RANK)
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    tempfile.tempdir = tempfile.mkdtemp()  # the servers compile their allocator there
    return sglang() if SERVER == "sglang" else vllm()


def sglang() -> Server:
    """Start SGLang."""
    coordinator = SimpleNamespace(unique_name="tp", world_size=WORLD, is_first_rank=True)
    stand_ins.sglang(coordinator)
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.distributed.device_communicators import pynccl, pynccl_allocator

    made = pynccl.PyNcclCommunicator(dist.group.WORLD, RANK, is_symmetric_memory_enabled=True)
    coordinator.pynccl_comm = made
    return Server(made, coordinator, pynccl_allocator.use_symmetric_memory, pynccl_allocator)


def vllm() -> Server:
    """Start vLLM."""
    stand_ins.vllm()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.distributed.device_communicators import pynccl, pynccl_allocator

    pynccl._NCCL_SYMM_OPS_REGISTERED = True  # no operator for torch.compile
    made = pynccl.PyNcclCommunicator(dist.group.WORLD, RANK)
    return Server(made, made, pynccl_allocator.nccl_symm_mem_context, pynccl_allocator)


def reduce(communicator: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Sum over the ranks, by the server's function."""
    if SERVER == "sglang":
        with communicator.change_state(enable=True):
            communicator.all_reduce(tensor)
        return tensor
    return communicator.all_reduce(tensor, torch.empty_like(tensor))


def end(communicator: Any) -> None:
    """End the communicator. The servers never do, nor their windows: at the exit their pools free the memory below."""
    dist.barrier()
    ctypes.CDLL(stand_ins.LIBRARY).ncclCommAbort(communicator.comm)
    tell(left=tracehook.status()["communicators"], compiled=stand_ins.compiled)
