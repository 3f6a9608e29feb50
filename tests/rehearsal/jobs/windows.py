"""What ranks do right and wrong with windows; the first argument says which."""

import ctypes
import sys
import threading
import time

from raw import DOUBLE, MAX, RANK, Group, allocate, cuda, meet, must, nccl, read, tell, write

group = Group()
LAST = 1023  # of the elements of an operation: the last rank's share


def swapped() -> tuple[int, int]:
    """Register two buffers of one size, on rank 1 in the opposite order."""
    first, second = allocate(4, RANK + 1), allocate(4, 100 * (RANK + 1))
    for memory in (first, second) if RANK == 0 else (second, first):
        group.window(memory, 4)
        must(group.result)
    return first, second


def right() -> None:
    first, second = allocate(4, RANK + 1), allocate(4)
    windows = [group.window(memory, 4) for memory in (first, second)]
    must(group.all_reduce(first, second))
    reduced = read(second, 0, LAST)
    must(group.all_reduce(first, first))
    must(group.all_gather(first, second))
    gathered = read(second, 0, 1024, 2047)
    must(group.reduce_scatter(second, first))
    tell(reduced=reduced, gathered=gathered, scattered=read(first, 0, LAST))
    tell(dropped=[group.drop(window) for window in windows], none=group.drop(ctypes.c_void_p()))


def opposite_order() -> None:
    first, second = swapped()
    must(group.all_reduce(first, first))
    tell(first=read(first, 0, LAST), second=read(second, 0, LAST))


def opposite_order_gather() -> None:
    first, second = swapped()
    must(group.all_gather(first, second))
    tell(first=read(first, 0, 1024), second=read(second, 0, 1024))


def opposite_order_scatter() -> None:
    first, second = swapped()
    must(group.reduce_scatter(first, second))
    tell(second=read(second, 0))


def opposite_order_ordinary() -> None:
    """Operations without a symmetric kernel do not care."""
    first, second = swapped()
    must(group.all_reduce(first, first, op=MAX))
    pointer = ctypes.c_void_p(second)
    must(nccl.ncclBroadcast(pointer, pointer, ctypes.c_size_t(1024), 7, 1, group.comm, None))
    outside = allocate(4)
    must(group.all_reduce(outside, outside, type_=DOUBLE))
    tell(first=read(first, 0, LAST), second=read(second, 0, LAST))


def opposite_order_sizes() -> None:
    sizes = (4, 64) if RANK == 0 else (64, 4)
    results = []
    for size in sizes:
        group.window(allocate(size), size)
        results.append(group.result)
    memory = allocate(4, RANK + 1)
    must(group.all_reduce(memory, memory))
    tell(results=results, sum=read(memory, 0))


def larger_on_one() -> None:
    size = 4 + 4 * RANK
    memory = allocate(size, RANK + 1)
    group.window(memory, size)
    tell(result=group.result)
    if group.result == 0:
        must(group.all_reduce(memory, memory))
        tell(small=read(memory, 0, LAST))
        memory = memory if RANK == 0 else memory + 3 * (1 << 20)
        must(group.all_reduce(memory, memory, count=1 << 19))
        must(cuda.cudaDeviceSynchronize())
        tell(large=group.ready())


def one_rank_only() -> None:
    memory = allocate(4)
    if RANK == 0:
        begun = time.monotonic()
        group.window(memory, 4)
        tell(result=group.result, waited=time.monotonic() - begun, later=group.all_reduce(memory, memory))
    meet("end")


def abort_ends_the_wait() -> None:
    if RANK == 0:
        memory = allocate(4)
        group.abort_soon_after("ncclCommWindowRegister")
        begun = time.monotonic()
        group.window(memory, 4)
        tell(result=group.result, waited=time.monotonic() - begun)
    meet("end")


def plain_memory(both: bool = True) -> None:
    memory = ctypes.c_void_p()
    must(cuda.cudaMalloc(ctypes.byref(memory), 4 << 20))
    begun = time.monotonic()
    group.window(memory.value or 0 if both or RANK == 0 else allocate(4), 4)
    tell(result=group.result, waited=time.monotonic() - begun)


def plain_memory_on_one() -> None:
    plain_memory(both=False)
    meet("end")


def mixed(seconds_to_abort: float = 0) -> None:
    memory = allocate(4, RANK + 1)
    other = allocate(4, RANK + 1)
    window = group.window(memory, 4)
    must(group.result)
    used = memory if RANK == 0 else other
    begun = time.monotonic()
    must(group.all_reduce(used, used))
    if seconds_to_abort:
        meet("enqueued")
        threading.Timer(seconds_to_abort, group.abort).start()
    must(cuda.cudaDeviceSynchronize())
    tell(waited=time.monotonic() - begun)
    if not seconds_to_abort:
        tell(error=group.ready(), later=group.drop(window))


def mixed_aborted() -> None:
    mixed(2.0)


def local_deregister() -> None:
    memory, other = allocate(4), allocate(4, RANK + 1)
    window = group.window(memory, 4)
    if RANK == 0:
        must(group.drop(window))
    must(group.all_reduce(other, other))
    tell(sum=read(other, 0))
    meet("reduced")
    if RANK == 1:
        must(group.drop(window))


def uneven_order() -> None:
    """Different windows are deregistered, then a new one registered: the memory is right, the order is not."""
    windows = [group.window(allocate(4), 4) for _ in range(2)]
    must(group.drop(windows[RANK]))
    memory = allocate(4, RANK + 1)
    last = group.window(memory, 4)
    must(group.result)
    must(group.all_reduce(memory, memory))
    tell(sum=read(memory, 0, LAST))
    must(group.drop(windows[1 - RANK]))
    must(group.drop(last))


def twice() -> None:
    memory = allocate(4, RANK + 1)
    windows = [group.window(memory, 4) for _ in range(2)]
    tell(different=windows[0].value != windows[1].value)
    must(group.drop(windows[0]))
    must(group.all_reduce(memory, memory))
    tell(sum=read(memory, 0, LAST), last=group.drop(windows[1]), again=group.drop(windows[1]))


def twice_on_one() -> None:
    memory = allocate(4)
    group.window(memory, 4)
    group.window(memory if RANK == 0 else allocate(4), 4)
    tell(result=group.result)
    meet("end")


def side_by_side() -> None:
    memory = allocate(8, RANK + 1)
    half = 4 << 20
    for start in (memory, memory + half):
        group.window(start, 4)
        must(group.result)
    across = memory + half - 2048
    write(across, RANK + 1)
    must(group.all_reduce(across, across))
    tell(sum=read(across, 0, LAST))


def two_communicators() -> None:
    other = Group("second")
    memory = allocate(4, RANK + 1)
    group.window(memory, 4)
    other.window(memory, 4)
    must(other.all_reduce(memory, memory))
    tell(results=[group.result, other.result], sum=read(memory, 0, LAST))
    group.abort()
    other.abort()


def freed_under() -> None:
    memory = allocate(4)
    window = group.window(memory, 4)
    tell(freed=nccl.ncclMemFree(memory), dropped=group.drop(window))


def live_at_destroy() -> None:
    window = group.window(allocate(4), 4)
    group.destroy()
    tell(after=group.drop(window))


def live_at_abort() -> None:
    window = group.window(allocate(4), 4)
    group.abort()
    again = Group("second")
    tell(same=again.comm.value == group.comm.value, after=again.drop(window))


def shrunk() -> None:
    """Rank 1 is left out; rank 0 ends the old communicator's work and gives back what it has of it."""
    window = group.window(allocate(4), 4)
    made = group.make_device_communicator()
    must(group.result)
    meet("made")
    if RANK == 1:
        group.abort()
        return
    child, excluded = ctypes.c_void_p(), ctypes.c_int(1)
    must(nccl.ncclCommShrink(group.comm, ctypes.byref(excluded), 1, ctypes.byref(child), None, 1))
    tell(device_side=group.drop_device_communicator(made), window=group.drop(window))
    group.destroy()
    must(nccl.ncclCommDestroy(child))


def misaligned() -> None:
    group.window(allocate(4) + 512, 2)
    tell(result=group.result, next=group.window(allocate(4), 4).value, poisoned=group.result)


def wrong_arguments() -> None:
    memory = allocate(4)
    group.window(0, 4)
    results = [group.result]
    group.window(memory, 0)
    results.append(group.result)
    tell(results=results, unknown=group.drop(ctypes.c_void_p(4096)))
    group.window(memory, 4)
    tell(fine=group.result)


def unsupported() -> None:
    memory = allocate(4, RANK + 1)
    handle = ctypes.c_void_p()
    size = ctypes.c_size_t(4 << 20)
    must(nccl.ncclCommRegister(group.comm, ctypes.c_void_p(memory), size, ctypes.byref(handle)))
    window = group.window(memory, 4)
    must(group.all_reduce(memory, memory))
    tell(window=window.value, local=handle.value, result=group.result, sum=read(memory, 0, LAST))
    must(group.drop(window))
    must(nccl.ncclCommDeregister(group.comm, handle))
    group.destroy()


def wrong_function() -> None:
    window = group.window(allocate(4), 4)
    tell(result=nccl.ncclCommDeregister(group.comm, window))


def in_a_group() -> None:
    memory, other = allocate(4, RANK + 1), allocate(4)
    must(nccl.ncclGroupStart())
    first = group.window(memory, 4)
    second = group.window(other, 4)
    before = [first.value, second.value]
    must(group.all_reduce(memory, memory))
    must(nccl.ncclGroupEnd())
    tell(before=before, written=first.value != 1 and second.value != 1, sum=read(memory, 0, LAST))
    tell(dropped=[group.drop(first), group.drop(second)])


def several_in_a_group() -> None:
    """Two communicators in one group, named in opposite orders by the ranks."""
    other = Group("second")
    memory = allocate(4, RANK + 1)
    must(nccl.ncclGroupStart())
    windows = [(each, each.window(memory, 4)) for each in ((group, other) if RANK == 0 else (other, group))]
    tell(result=nccl.ncclGroupEnd(), dropped=[each.drop(window) for each, window in windows])


def non_blocking() -> None:
    """Each rank is the first one once: the other rank comes when a further call of the first was refused."""
    mine = Group("second", blocking=False)
    errors, written, seconds = [], [], []
    for first in range(2):
        memory = allocate(4, RANK + 1)
        if first != RANK:
            meet(f"refused {first}")
        begun = time.monotonic()
        window = mine.window(memory, 4)
        if first == RANK:
            tell(early=mine.result, refused=mine.all_reduce(memory, memory))
            meet(f"refused {first}")
        errors.append(mine.ready())
        written.append(window.value != 1)
        seconds.append(time.monotonic() - begun)
    tell(errors=errors, written=written, seconds=min(seconds))
    mine.abort()


def flags_differ() -> None:
    memory = allocate(4, RANK + 1)
    group.window(memory, 4, flags=RANK)
    tell(result=group.result)


def odd_size() -> None:
    memory = allocate(4, RANK + 1)
    odd = group.window(memory, 1)
    tell(odd=[group.result, odd.value])
    whole = group.window(memory, 4)
    tell(whole=[group.result, whole.value is not None])
    must(group.drop(whole))


def too_much() -> None:
    memory = allocate(1000)
    results = []
    for _ in range(5):
        group.window(memory, 1000)
        results.append(group.result)
    tell(results=results)


def in_use() -> None:
    """Deregister while an all-reduce waits for the other rank."""
    memory = allocate(4, RANK + 1)
    window = group.window(memory, 4)
    if RANK == 0:
        must(group.all_reduce(memory, memory))
        must(group.drop(window))
        meet("dropped")
    else:
        meet("dropped")
        must(group.all_reduce(memory, memory))
    tell(sum=read(memory, 0))
    if RANK == 1:
        must(group.drop(window))


def failing_on_one() -> None:
    group.window(allocate(4), 4)
    tell(first=group.result)
    group.window(allocate(4), 4)
    tell(second=group.result)
    meet("end")


def later_on_one() -> None:
    memory = allocate(4)
    begun = time.monotonic()
    group.window(memory, 4)
    must(group.result)
    tell(begun=begun, ended=time.monotonic())


def capturing(stream: ctypes.c_void_p) -> None:
    """Begin a capture of mode "global"."""
    must(cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
    must(cuda.cudaStreamBeginCapture(stream, 0))


def during_capture() -> None:
    memory = allocate(4, RANK + 1)
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    capturing(stream)
    group.window(memory, 4)
    tell(result=group.result, ended=cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)))


def captured_all_reduce(memory: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]:
    """Return a stream, the graph that was captured on it, and an instance of that."""
    stream, graph, instance = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    capturing(stream)
    must(group.all_reduce(memory, memory, stream=stream.value or 0))
    must(cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)))
    must(cuda.cudaGraphInstantiate(ctypes.byref(instance), graph, ctypes.c_ulonglong(0)))
    return stream, graph, instance


def captured() -> None:
    """A captured all-reduce is replayed among others that are not, and its window is left to the end."""
    memory, other = allocate(4), allocate(4, RANK + 1)
    window = group.window(memory, 4)
    stream, graph, instance = captured_all_reduce(memory)
    sums = []
    for value in (1, 10):
        write(memory, value * (RANK + 1))
        must(cuda.cudaGraphLaunch(instance, stream))
        must(cuda.cudaStreamSynchronize(stream))
        must(group.all_reduce(other, other))
        sums += read(memory, 0, LAST)
    # Twice in a row, without waiting in between: the second doubles what the first left.
    must(cuda.cudaGraphLaunch(instance, stream))
    must(cuda.cudaGraphLaunch(instance, stream))
    tell(sums=sums, doubled=read(memory, 0), other=read(other, 0))
    if sys.argv[2] == "early":
        must(group.drop(window))
    must(cuda.cudaGraphExecDestroy(instance))
    must(cuda.cudaGraphDestroy(graph))
    if sys.argv[2] == "late":
        must(group.drop(window))


def launched_after_destroy() -> None:
    memory = allocate(4, RANK + 1)
    stream, _, instance = captured_all_reduce(memory)
    group.destroy()
    must(cuda.cudaGraphLaunch(instance, stream))
    tell(untouched=read(memory, 0))


def ranks_of_one_process() -> None:
    """A communicator of two devices in this process: their windows are made in one group."""
    comms = (ctypes.c_void_p * 2)()
    must(nccl.ncclCommInitAll(comms, 2, None))
    memories, windows = [], []
    for device in range(2):
        must(cuda.cudaSetDevice(device))
        memories.append(allocate(4, device + 1))
    must(nccl.ncclGroupStart())
    for comm, memory in zip(comms, memories, strict=True):
        windows.append(ctypes.c_void_p(1))
        size, pointer = ctypes.c_size_t(4 << 20), ctypes.c_void_p(memory)
        must(nccl.ncclCommWindowRegister(ctypes.c_void_p(comm), pointer, size, ctypes.byref(windows[-1]), 1))
        must(nccl.ncclAllReduce(pointer, pointer, ctypes.c_size_t(1024), 7, 0, ctypes.c_void_p(comm), None))
    must(nccl.ncclGroupEnd())
    sums = []
    for device in range(2):
        must(cuda.cudaSetDevice(device))
        sums += read(memories[device], 0, LAST)
        must(nccl.ncclCommWindowDeregister(ctypes.c_void_p(comms[device]), windows[device]))
    tell(sums=sums)


globals()[sys.argv[1]]()
