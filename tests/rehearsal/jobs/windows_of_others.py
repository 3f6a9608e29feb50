"""Windows that a program registers itself, on a communicator of its own. Argument: the case.

The communicator is one of ctypes, as servers make them.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook

import raw
from common import MB, RANK, nccl_calls, raised, start, tell

CASE = sys.argv[1]
BUSY = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
typedef int function(void*, void*, size_t, void**, int);
typedef const char* explanation(void*);
struct call { function* make; explanation* error; void *comm, *memory; size_t size; int result; char why[999]; };
static void* make(void* given) {
    struct call* call = given;
    void* window;
    call->result = call->make(call->comm, call->memory, call->size, &window, 1);
    snprintf(call->why, sizeof call->why, "%s", call->error(call->comm));
    return NULL;
}
void register_while_busy(struct call* call) {
    pthread_t thread;
    pthread_create(&thread, NULL, make, call);
    usleep(4500000);
    pthread_join(thread, NULL);
}
"""
REGISTER = "ncclCommWindowRegister"
POOLS: list[object] = []
nccl = raw.nccl
nccl.ncclGetLastError.restype = ctypes.c_char_p


class Call(ctypes.Structure):
    """What `register_while_busy` takes and fills."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("make", "error", "comm", "memory")),
        ("size", ctypes.c_size_t),
        ("result", ctypes.c_int),
        ("why", ctypes.c_char * 999),
    )


def said() -> str:
    """Return why the last call was refused."""
    text = nccl.ncclGetLastError(group.comm)
    return text.decode() if text else ""


def register(memory: int, size_mb: float, flags: int = raw.SYMMETRIC) -> ctypes.c_void_p:
    """Register a window; tell how that went, and whether NCCL was called."""
    calls, begin = nccl_calls(REGISTER), time.monotonic()
    window = group.window(memory, size_mb, flags)
    seconds = round(time.monotonic() - begin, 2)
    tell(result=group.result, said=said(), seconds=seconds, called=nccl_calls(REGISTER) - calls)
    return window


def alike() -> None:
    """All ranks register two windows in one order, use them, and undo them."""
    memory = [raw.allocate(4, RANK + 1), raw.allocate(8, RANK + 1)]
    windows = [register(memory[0], 4), register(memory[1], 8)]
    for place in memory:
        raw.must(group.all_reduce(place, place))
    tell(sums=[raw.read(place, 0)[0] for place in memory])
    raw.meet("used")
    raw.must(group.drop(windows[1]))
    raw.must(group.drop(windows[0]))


def grouped() -> None:
    """Two windows are registered inside a group of NCCL's calls, which makes them at its end."""
    memory = [raw.allocate(4, RANK + 1), raw.allocate(8, RANK + 1)]
    raw.must(nccl.ncclGroupStart())
    windows = [register(place, size) for place, size in zip(memory, (4, 8), strict=True)]
    raw.must(nccl.ncclGroupEnd())
    raw.must(group.all_reduce(memory[0], memory[0]))
    tell(sum=raw.read(memory[0], 0)[0], made=[bool(window.value) for window in windows])
    raw.meet("used")
    for window in windows:
        raw.must(group.drop(window))


def unequal() -> None:
    """The ranks register windows of other sizes."""
    register(raw.allocate(8), 4 + 4 * RANK)


def has_heard() -> bool:
    """Whether this rank's log says that the other one waited for it in vain."""
    return "agreement.timeout" in Path(str(tracehook.status()["log"])).read_text()


def missing() -> None:
    """One rank registers a window, the other does not."""
    memory = raw.allocate(4)
    if RANK == 0:
        register(memory, 4)
    raw.meet("registered")
    if RANK:
        raw.until(has_heard)


def interpreter_is_busy() -> None:
    """On one rank a thread without Python registers, while another holds the interpreter for longer than is allowed."""
    memory = raw.allocate(4)
    library = Path(os.environ["TEST_STORE"]).with_name(f"busy.{RANK}.so")
    if RANK == 0:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=BUSY, text=True, check=True)
    raw.meet("allocated")
    if RANK:
        register(memory, 4)
        return
    calls = nccl_calls(REGISTER)
    pointers = (ctypes.cast(call, ctypes.c_void_p) for call in (nccl.ncclCommWindowRegister, nccl.ncclGetLastError))
    call = Call(*pointers, group.comm, memory, 4 * MB)
    ctypes.PyDLL(str(library)).register_while_busy(ctypes.byref(call))  # PyDLL: the call keeps the GIL
    tell(result=call.result, said=call.why.decode(), called=nccl_calls(REGISTER) - calls)


def swapped() -> None:
    """Two windows of one size are registered in opposite order."""
    first, second = raw.allocate(4, 1), raw.allocate(4, 10)
    for memory in (first, second) if RANK == 0 else (second, first):
        register(memory, 4)
    tell(used=group.all_reduce(first, first), why=said())


def one_ordinary() -> None:
    """One rank's buffer lies in a window, the other's does not."""
    inside, outside = raw.allocate(4, 1), raw.allocate(4, 1)
    register(inside, 4)
    place = inside if RANK == 0 else outside
    tell(used=group.all_reduce(place, place), why=said())


def for_kernels() -> None:
    """Two windows without NCCL_WIN_COLL_SYMMETRIC; each rank passes a buffer in another one to a collective."""
    memory = [raw.allocate(4, RANK + 1), raw.allocate(4, RANK + 1)]
    for place in memory:
        register(place, 4, flags=0)
    used = group.all_reduce(memory[RANK], memory[RANK])
    tell(used=used, sum=raw.read(memory[RANK], 0)[0])


def of_torch(more: int = 32) -> None:
    """Torch registers its pool with a group: on one rank that has another size."""
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty((32 + more * RANK) * MB, dtype=torch.uint8, device="cuda")
    calls = nccl_calls(REGISTER)
    text = raised(backend.register_mem_pool, pool, symm=True)
    tell(raised=text, called=nccl_calls(REGISTER) - calls)
    if text:
        raw.meet("raised")
        os._exit(0)  # at the end of the pool torch would deregister what was never registered, and end the process
    POOLS.append((pool, kept))


def with_a_scope() -> None:
    """One rank asks about the group; all register a pool of torch's, and then enter a scope of the group."""
    if RANK == 0:
        tell(asked=tracehook.explain(torch.empty(4, device="cuda")).reason)
    of_torch(more=0)
    with tracehook.symmetric():
        tensor = torch.empty(8 * MB, device="cuda")
    tensor.copy_(torch.full(tensor.shape, RANK + 1.0))
    dist.all_reduce(tensor)
    tell(sum=float(tensor[0].cpu()), symmetric=tracehook.is_symmetric(tensor))
    raw.meet("reduced")
    os._exit(0)


def inside_a_scope() -> None:
    """The program registers a window in memory of a scope; then the ranks use different tensors of that scope."""
    comm = dist.group.WORLD._get_backend(torch.device("cuda"))._comm_ptr()
    with tracehook.symmetric():
        kept = torch.empty(32 * MB, dtype=torch.uint8, device="cuda")
    group.comm = ctypes.c_void_p(comm)
    register(kept.data_ptr() + 2 * MB, 2)
    first, second = (kept[begin * MB :][: 2 * MB].view(torch.float32) for begin in (8, 12))
    tell(symmetric=[tracehook.is_symmetric(tensor) for tensor in (first, second)])
    tell(raised=raised(dist.all_reduce, first if RANK == 0 else second))
    raw.meet("over")
    os._exit(0)


if CASE == "no_store":
    torch.cuda.set_device(RANK)
    torch.empty(1, device="cuda")
else:
    start()
assert tracehook.status()["state"] == "on"
group = raw.Group()
alike() if CASE == "no_store" else globals()[CASE]()
raw.meet("done")
nccl.ncclCommAbort(group.comm)
