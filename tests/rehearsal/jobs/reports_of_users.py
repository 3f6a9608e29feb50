"""What programs did whose users reported a fault to other projects, as small as it can be.

Each has a communicator of its own beside torch's, as servers have, and a pool whose segments get windows with it.
Arguments: the case, and the seconds after which a collective counts as one that hangs.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as torch_symmetric_memory
import tracehook

import raw
from common import MB, RANK, filled, leave, nccl_calls, start, tell
from heard import hear

SIZE = 24  # MiB of a tensor: a segment of its own
HANGS = float(sys.argv[2])
FOUND = "the ranks used different memory"  # of a swap of known windows, in the background
REGISTER = "ncclCommWindowRegister"
nccl = raw.nccl
nccl.ncclGetLastError.restype = ctypes.c_char_p
device = start()
group = raw.Group()
pool = torch.cuda.MemPool(dist.group.WORLD._get_backend(device).mem_allocator)
known: set[int] = set()  # segments of the pool that were registered


def must(result: int) -> None:
    """Raise what NCCL says if its answer is no success."""
    if result:
        raise RuntimeError(f"NCCL error {result}: {(nccl.ncclGetLastError(group.comm) or b'').decode()}")


def register() -> None:
    """Register what is new in the pool."""
    for segment in pool.snapshot():
        if segment["address"] not in known:
            group.window(segment["address"], segment["total_size"] / MB)
            must(group.result)
            known.add(segment["address"])


def empty(size_mb: float = SIZE) -> torch.Tensor:
    return torch.empty(int(size_mb * MB) // 4, device=device)


def new(size_mb: float = SIZE) -> torch.Tensor:
    """Return a tensor in a window."""
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(size_mb)
    register()
    return tensor


def reduce(tensor: torch.Tensor) -> None:
    """Sum a tensor over the ranks, on the current stream."""
    stream = torch.cuda.current_stream().cuda_stream
    must(group.all_reduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), stream=stream))


@contextmanager
def told(what: str) -> Iterator[None]:
    """Tell what the body raised, and how often it asked NCCL for a window."""
    calls, raised = nccl_calls(REGISTER), ""
    try:
        yield
    except RuntimeError as problem:
        raised = str(problem)
    tell(**{what: raised, f"{what}_called": nccl_calls(REGISTER) - calls})


def tell_sum(tensor: torch.Tensor) -> None:
    """Tell the first element when all work is done; nothing if it hangs."""
    done, deadline = torch.cuda.Event(), time.monotonic() + HANGS
    done.record()
    while not done.query():
        if time.monotonic() > deadline:
            tell(hangs=True)
            return
        time.sleep(0.01)
    tell(hangs=False, sum=float(tensor[0].cpu()))


def other_warm_ups(used: bool) -> None:
    """The ranks keep other tensors of their warm-up, so that a capture finds another free block on each.

    `used`: the warm-up used both blocks.
    """
    source, stream, graph = filled(RANK + 1, SIZE, device), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        tensors = [new(), new()]
        for number in range(2 * used):
            reduce(tensors[number])
        del tensors[RANK]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        out = empty()
        out.copy_(source)
        with told("captured"):
            reduce(out)
    graph.replay()
    torch.cuda.synchronize()
    tell_sum(out)
    if used and tracehook.status()["state"] == "on":
        hear(FOUND)
        with told("later"):
            reduce(out)


def registered_in_a_capture() -> None:
    """Memory that is new in a capture gets its window there."""
    source, graph = filled(RANK + 1, SIZE, device), torch.cuda.CUDAGraph()
    with told("capture"), torch.cuda.graph(graph, pool=pool.id):
        tensor = empty()
        tensor.copy_(source)
        with told("registered"):
            register()
        reduce(tensor)
    with told("replayed"):
        graph.replay()
        torch.cuda.synchronize()
        tell_sum(tensor)


def out_of_memory(before: bool) -> None:
    """One rank gets no memory for a window, and goes on with ordinary memory. `before`: there are windows already."""
    plain, memory = filled(RANK + 1, SIZE, device), ctypes.c_void_p()
    if before:
        reduce(new())
    failed = nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4 * MB))
    with told("registered"):
        if not failed:
            group.window(memory.value or 0, 4)
            must(group.result)
    with told("reduced"):
        reduce(plain)
    if before and tracehook.status()["state"] == "on":
        reduce(plain)  # both ranks have heard of it at the call before
    tell_sum(plain)


def other_addresses(used: bool) -> None:
    """Tensors get windows in one order, and have addresses in another one on rank 1; both ranks use a free one again.

    The emulated driver gives them in another order on each device. The pool is torch's own, for its default group.
    Torch's `rendezvous` registers in the same way, but it also wants a communicator for kernels, which is not emulated.
    `used`: both tensors were used before.
    """
    torch_symmetric_memory.set_backend("NCCL")
    dist.all_reduce(filled(1, 1, device))
    comm = ctypes.c_void_p(dist.group.WORLD._get_backend(device)._comm_ptr())
    with torch.cuda.use_mem_pool(torch_symmetric_memory.get_mem_pool(device)):
        tensors = [empty(), empty()]
        tell(ascending=tensors[0].data_ptr() < tensors[1].data_ptr())
        for number in range(2):
            where = ctypes.c_void_p(tensors[number].data_ptr()), ctypes.c_size_t(SIZE * MB)
            raw.must(nccl.ncclCommWindowRegister(comm, *where, ctypes.byref(ctypes.c_void_p()), raw.SYMMETRIC))
            if used:
                dist.all_reduce(tensors[number])
        torch.cuda.synchronize()
        places = [tensor.data_ptr() for tensor in tensors]
        tensors.clear()
        again = empty()
        tell(again=places.index(again.data_ptr()))
    again.copy_(filled(RANK + 1, SIZE, device))
    with told("reduced"):
        dist.all_reduce(again)
    tell_sum(again)
    if used and tracehook.status()["state"] == "on":
        hear(FOUND)
        with told("later"):
            dist.all_reduce(again)


CASES: dict[str, Callable[[], object]] = {
    "other_warm_ups": lambda: other_warm_ups(used=False),
    "other_warm_ups_known": lambda: other_warm_ups(used=True),
    "registered_in_a_capture": registered_in_a_capture,
    "out_of_memory": lambda: out_of_memory(before=False),
    "out_of_memory_later": lambda: out_of_memory(before=True),
    "other_addresses": lambda: other_addresses(used=False),
    "other_addresses_known": lambda: other_addresses(used=True),
}
CASES[sys.argv[1]]()
raw.meet("done")
leave()  # the pool has windows that nobody undoes
