"""What NCCL makes of registered memory; the first argument says what happens."""

import ctypes
import os
import sys
from collections.abc import Callable

import driver
from raw import FLOAT, MB, RANK, Group, cuda, must, nccl, read, tell, write

SIZE = 8 * MB
RELAXED = 2
SMALL, LARGE = MB // 8, MB // 2  # floats: 1 MiB of two ranks, and 4 MiB; half a MiB of one, and 2 MiB

if sys.argv[1] == "two_hosts":
    os.environ["NCCL_HOSTID"] = str(RANK)
group = Group()


class Head(ctypes.Structure):
    """The beginning of NCCL's own record."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("local_references", ctypes.c_int),
        ("graph_references", ctypes.c_int),
        ("state", ctypes.c_uint32),
    )


def memory_of(kind: str) -> int:
    """Return zeroed memory of SIZE bytes: of cudaMalloc, ncclMemAlloc, or of a handle that can be exported or not."""
    pointer = ctypes.c_void_p()
    if kind == "malloc":
        must(cuda.cudaMalloc(ctypes.byref(pointer), SIZE))
    elif kind == "nccl":
        must(nccl.ncclMemAlloc(ctypes.byref(pointer), SIZE))
    else:
        handle = driver.created(SIZE, driver.DESCRIPTOR if kind == "exportable" else 0, RANK)
        address = driver.mapped(handle, SIZE, device=RANK)
        must(driver.cuda.cuMemRelease(handle))
        return address
    return pointer.value or 0


def register(memory: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p(1)
    size = ctypes.c_size_t(SIZE)
    must(nccl.ncclCommRegister(group.comm, ctypes.c_void_p(memory), size, ctypes.byref(handle)))
    return handle


def deregister(handle: ctypes.c_void_p) -> None:
    must(cuda.cudaDeviceSynchronize())
    must(nccl.ncclCommDeregister(group.comm, handle))


def state(handle: ctypes.c_void_p) -> int:
    return int(Head.from_address(handle.value or 0).state)


def gather(memory: int, count: int, stream: ctypes.c_void_p | None = None) -> None:
    """All-gather in place: both buffers lie in what is registered."""
    send = ctypes.c_void_p(memory + RANK * count * 4)
    must(nccl.ncclAllGather(send, ctypes.c_void_p(memory), ctypes.c_size_t(count), FLOAT, group.comm, stream))


def message(memory: int, count: int) -> None:
    """Rank 0 sends to rank 1."""
    call = nccl.ncclRecv if RANK else nccl.ncclSend
    must(call(ctypes.c_void_p(memory), ctypes.c_size_t(count), FLOAT, 1 - RANK, group.comm, None))


def exchange(memory: int, count: int) -> None:
    """All-to-all from the first half of the memory to the second one."""
    send, receive = ctypes.c_void_p(memory), ctypes.c_void_p(memory + SIZE // 2)
    must(nccl.ncclAlltoAll(send, receive, ctypes.c_size_t(count), FLOAT, group.comm, None))


def broadcast(memory: int, count: int) -> None:
    pointer = ctypes.c_void_p(memory)
    must(nccl.ncclBroadcast(pointer, pointer, ctypes.c_size_t(2 * count), FLOAT, 0, group.comm, None))


def all_reduce(memory: int, count: int) -> None:
    must(group.all_reduce(memory, memory, 2 * count))


def reduce_scatter(memory: int, count: int) -> None:
    must(group.reduce_scatter(memory, memory + RANK * count * 4, count))


CALLS: dict[str, Callable[[int, int], None]] = {
    each.__name__: each for each in (gather, broadcast, message, exchange, all_reduce, reduce_scatter)
}


def states(kind: str, call: str) -> None:
    """The state before any call, after a small one and after a large one."""
    memory = memory_of(kind)
    handle = register(memory)
    head = Head.from_address(handle.value or 0)
    tell(extent=[head.begin - memory, head.end - memory], references=[head.local_references, head.graph_references])
    found = [state(handle)]
    for count in (SMALL, LARGE):
        CALLS[call](memory, count)
        found.append(state(handle))
    tell(states=found)
    deregister(handle)


def mixture(call: str, first: str, second: str, count: int = LARGE) -> None:
    """Two kinds of memory, registered on both ranks; the values are right here all the same."""
    memory = memory_of(first if RANK == 0 else second)
    handle = register(memory)
    CALLS[call](memory, count)
    tell(state=state(handle))
    deregister(handle)


def small_mixture(call: str) -> None:
    mixture(call, "nccl", "malloc", SMALL)


def one_side_of_a_message(registered: str) -> None:
    """Both have memory of NCCL, and one of them registered it."""
    memory = memory_of("nccl")
    write(memory, 1 - RANK)
    handle = register(memory) if str(RANK) == registered else None
    message(memory, LARGE)
    tell(received=read(memory, 0))
    if handle:
        deregister(handle)


def unexportable(call: str) -> None:
    """Memory that cannot be exported is gone once a call tried."""
    must(cuda.cudaSetDevice(RANK))
    used = []
    for times in (0, 1):
        memory = memory_of("unexportable")
        handle = register(memory)
        for _ in range(times):
            CALLS[call](memory, LARGE)
        tell(state=state(handle))
        deregister(handle)
        driver.unmapped(memory, SIZE)
        used.append(driver.used())
    tell(used=used)


def captured(kind: str, registered: str) -> None:
    """A captured all-gather, launched twice; a relaxed capture."""
    memory = memory_of(kind.split(",")[RANK % len(kind.split(","))])
    write(memory + RANK * LARGE * 4, RANK + 1)
    handle = register(memory) if registered == "registered" else None
    stream, graph, instance = driver.new_stream(), ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cudaStreamBeginCapture(stream, RELAXED))
    gather(memory, LARGE, stream)
    must(cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)))
    must(cuda.cudaGraphInstantiateWithFlags(ctypes.byref(instance), graph, ctypes.c_ulonglong(0)))
    for _ in range(2):
        must(cuda.cudaGraphLaunch(instance, stream))
    must(cuda.cudaStreamSynchronize(stream))
    tell(gathered=read(memory, 0, LARGE))
    must(cuda.cudaGraphExecDestroy(instance))
    must(cuda.cudaGraphDestroy(graph))
    if handle:
        tell(state=state(handle))
        deregister(handle)


def in_a_window() -> None:
    """The symmetric kernel leaves the registration alone; a message does not."""
    memory = memory_of("nccl")
    handle = register(memory)
    window = group.window(memory, SIZE // MB)
    must(group.result)
    found = []
    for call in (gather, message):
        call(memory, LARGE)
        found.append(state(handle))
    must(cuda.cudaDeviceSynchronize())
    must(group.drop(window))
    deregister(handle)
    tell(states=found)


def messages_first() -> None:
    """A registration that messages use, and then a collective."""
    memory = memory_of("nccl")
    handle = register(memory)
    exchange(memory, LARGE // 2)
    write(memory + RANK * LARGE * 4, RANK + 1)
    gather(memory, LARGE)
    must(cuda.cudaDeviceSynchronize())
    tell(gathered=read(memory, 0, LARGE))
    deregister(handle)


def send_buffer_elsewhere() -> None:
    """Only the receive buffer is registered."""
    memory, send = memory_of("nccl"), memory_of("nccl")
    handle = register(memory)
    must(group.all_gather(send, memory, LARGE))
    tell(state=state(handle))
    deregister(handle)


def no_local_registrations() -> None:
    tell(handle=register(memory_of("nccl")).value)


def two_hosts() -> None:
    states("nccl", "gather")


globals()[sys.argv[1]](*sys.argv[2:])
must(cuda.cudaDeviceSynchronize())
group.destroy()
