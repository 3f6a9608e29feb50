"""One process with a thread for each rank, on communicators made by hand: one frees memory while another waits for it.

Thread 0 is in a call that waits for thread 1. Thread 1 gives the memory of both devices back before it comes.
"""

import ctypes
import os
import sys
import threading
import time

import torch

from common import MB, UniqueId, must, nccl_calls, tell

CALL = sys.argv[1]
PATIENCE = 30

nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclCommSplit.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
nccl.ncclMemAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
nccl.ncclCommWindowRegister.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
]
nccl.ncclCommWindowDeregister.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
nccl.ncclMemFree.argtypes = [ctypes.c_void_p]

unique = UniqueId()
must(nccl.ncclGetUniqueId(ctypes.byref(unique)))
spare = [torch.empty(64 * MB, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
for index in (0, 1):
    torch.cuda.synchronize(index)
done, freed = [False, False], []


def split(communicator: ctypes.c_void_p, rank: int) -> None:
    child = ctypes.c_void_p()
    must(nccl.ncclCommSplit(communicator, 0, rank, ctypes.byref(child), None))
    must(nccl.ncclCommDestroy(child))


def window(communicator: ctypes.c_void_p, _: int) -> None:
    memory, made = ctypes.c_void_p(), ctypes.c_void_p()
    must(nccl.ncclMemAlloc(ctypes.byref(memory), 2 * MB))
    must(nccl.ncclCommWindowRegister(communicator, memory, 2 * MB, ctypes.byref(made), 1))
    must(nccl.ncclCommWindowDeregister(communicator, made))
    must(nccl.ncclMemFree(memory))


CALLS = {"ncclCommSplit": split, "ncclCommWindowRegister": window}


def run(rank: int) -> None:
    torch.cuda.set_device(rank)
    communicator = ctypes.c_void_p()
    must(nccl.ncclCommInitRank(ctypes.byref(communicator), 2, unique, rank))
    if rank == 1:
        while nccl_calls(CALL) == 0:
            time.sleep(0.01)
        spare.clear()
        torch.cuda.empty_cache()
        freed.append([torch.cuda.memory_reserved(index) for index in (0, 1)])
    CALLS[CALL](communicator, rank)
    must(nccl.ncclCommDestroy(communicator))
    done[rank] = True


threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(PATIENCE)
tell(done=done, freed=freed)
if not all(done):
    os._exit(1)
