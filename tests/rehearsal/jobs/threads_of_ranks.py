"""One process with a thread for each rank, on communicators made by hand: one frees memory while another waits for it.

Thread 0 is in a call that waits for thread 1. Thread 1 gives the memory of both devices back before it comes. What it
does then is the second argument: it comes, asks for memory first (`early`: before it comes, `late`: after that), ends
the communicator of the other (`abort`), or the program ends (`exit`).
"""

import ctypes
import os
import sys
import threading
import time

import torch

from common import MB, UniqueId, must, nccl_calls, tell

CALL, THEN = sys.argv[1], (*sys.argv[2:], "comes")[0]
PATIENCE = 30
OTHERS = {"ncclCommInitRank": 2}  # calls of that name before
SIZE = int(os.environ.get("SPARE_MB", "64")) * MB
FLOAT, SUM = 7, 0

POINTER, INT, SIZE_T = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclCommInitRank.argtypes = [POINTER, INT, UniqueId, INT]
nccl.ncclCommSplit.argtypes = [POINTER, INT, INT, POINTER, POINTER]
nccl.ncclMemAlloc.argtypes = [POINTER, SIZE_T]
nccl.ncclCommWindowRegister.argtypes = [POINTER, POINTER, SIZE_T, POINTER, INT]
nccl.ncclCommWindowDeregister.argtypes = [POINTER, POINTER]
nccl.ncclAllReduce.argtypes = [POINTER, POINTER, SIZE_T, INT, INT, POINTER, POINTER]
for name in ("ncclCommDestroy", "ncclCommAbort", "ncclMemFree"):
    getattr(nccl, name).argtypes = [POINTER]

unique, second = UniqueId(), UniqueId()
for each in (unique, second):
    must(nccl.ncclGetUniqueId(ctypes.byref(each)))


def room() -> list[int]:
    return [torch.cuda.mem_get_info(index)[0] for index in (0, 1)]


for index in (0, 1):
    torch.cuda.synchronize(index)
at_first = room()
spare = [torch.empty(SIZE, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
for index in (0, 1):
    torch.cuda.synchronize(index)
done = [False, False]
freed: list[list[int]] = []
asked: list[bool] = []
communicators = [ctypes.c_void_p(), ctypes.c_void_p()]
took: list[float] = []
ends = threading.Event()


def split(communicator: ctypes.c_void_p, rank: int) -> None:
    child = ctypes.c_void_p()
    result = nccl.ncclCommSplit(communicator, 0, rank, ctypes.byref(child), None)
    if THEN != "abort":
        must(result)
        must(nccl.ncclCommDestroy(child))


def window(communicator: ctypes.c_void_p, _: int) -> None:
    memory, made = ctypes.c_void_p(), ctypes.c_void_p()
    must(nccl.ncclMemAlloc(ctypes.byref(memory), 2 * MB))
    must(nccl.ncclCommWindowRegister(communicator, memory, 2 * MB, ctypes.byref(made), 1))
    must(nccl.ncclCommWindowDeregister(communicator, made))
    must(nccl.ncclMemFree(memory))


def init(_: ctypes.c_void_p, rank: int) -> None:
    other = ctypes.c_void_p()
    must(nccl.ncclCommInitRank(ctypes.byref(other), 2, second, rank))
    must(nccl.ncclCommDestroy(other))


def collective(communicator: ctypes.c_void_p, _: int) -> None:
    memory = ctypes.c_void_p()
    must(nccl.ncclMemAlloc(ctypes.byref(memory), 2 * MB))
    must(nccl.ncclAllReduce(memory, memory, MB // 2, FLOAT, SUM, communicator, None))
    torch.cuda.synchronize()
    must(nccl.ncclMemFree(memory))


def group(communicator: ctypes.c_void_p, rank: int) -> None:
    """A group that waits for ranks in its end, inside the gate: for the child."""
    memory, child = ctypes.c_void_p(), ctypes.c_void_p()
    must(nccl.ncclMemAlloc(ctypes.byref(memory), 2 * MB))
    must(nccl.ncclGroupStart())
    must(nccl.ncclAllReduce(memory, memory, MB // 2, FLOAT, SUM, communicator, None))
    must(nccl.ncclCommSplit(communicator, 0, rank, ctypes.byref(child), None))
    must(nccl.ncclGroupEnd())
    torch.cuda.synchronize()
    must(nccl.ncclMemFree(memory))
    must(nccl.ncclCommDestroy(child))


CALLS = {
    "ncclCommSplit": split,
    "ncclCommWindowRegister": window,
    "ncclCommInitRank": init,
    "ncclAllReduce": collective,
    "ncclGroupEnd": group,
}


def ask() -> None:
    """Ask for as much as was given back."""
    try:
        asked.append(torch.empty(SIZE, dtype=torch.uint8, device="cuda:0") is not None)
    except torch.cuda.OutOfMemoryError:
        asked.append(False)


def give_back() -> None:
    spare.clear()
    begin = time.monotonic()
    torch.cuda.empty_cache()
    took.append(time.monotonic() - begin)
    freed.append([torch.cuda.memory_reserved(index) for index in (0, 1)])


def await_other() -> None:
    """Wait until the other thread is in its call. NCCL counts no calls: on real devices it has two seconds."""
    if not hasattr(ctypes.CDLL(None), "emu_nccl_call_count"):
        time.sleep(2)
        return
    while nccl_calls(CALL) == OTHERS.get(CALL, 0):
        time.sleep(0.01)


def run(rank: int) -> None:
    torch.cuda.set_device(rank)
    communicator = communicators[rank]
    must(nccl.ncclCommInitRank(ctypes.byref(communicator), 2, unique, rank))
    if rank == 1:
        await_other()
        give_back()
        if THEN == "early":
            ask()
        if THEN == "exit":
            ends.set()
            time.sleep(PATIENCE)
    if THEN == "abort" and rank == 1:
        must(nccl.ncclCommAbort(communicators[0]))
    else:
        CALLS[CALL](communicator, rank)
    if THEN == "late" and rank == 1:
        ask()
        torch.cuda.empty_cache()
    if THEN != "abort" or rank == 1:
        must((nccl.ncclCommAbort if THEN == "abort" else nccl.ncclCommDestroy)(communicator))
    done[rank] = True


threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
for thread in threads:
    thread.start()
if THEN == "exit":
    ends.wait(PATIENCE)
    tell(done=[ends.is_set()] * 2, freed=freed)
    sys.exit(0)
for thread in threads:
    thread.join(PATIENCE)
tell(done=done, freed=freed, took=took, asked=asked, kept=[a - b for a, b in zip(at_first, room(), strict=True)])
if not all(done):
    os._exit(1)
