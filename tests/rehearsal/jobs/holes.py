"""What PyTorch's own registration does wrong, and the same by tracehook. Arguments: a case, who registers, and how.

Each case does the same by both: `registered_memory` and `symmetric_memory` say where its tensors are made.
"""

import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, filled, nccl_calls, start, tell
from symmetric_tools import attempt, caught, empty, in_vain, meet, refill

WHAT, BY, *HOW = sys.argv[1:]
Scope = Callable[[], AbstractContextManager[object]]
pools: list[torch.cuda.MemPool] = []


def backend(group: dist.ProcessGroup | None = None) -> dist.distributed_c10d.Backend:
    return (group or dist.group.WORLD)._get_backend(torch.device("cuda"))


def new_pool(pool: torch.cuda.MemPool | None = None) -> Scope:
    """Return where tensors come from a pool that is not registered yet, of NCCL's memory unless it is given."""
    pools.append(pool or torch.cuda.MemPool(backend().mem_allocator))
    return lambda: torch.cuda.use_mem_pool(pools[-1])


def registered_memory() -> Scope:
    """Return where tensors are registered locally: in a pool of torch's, or everywhere."""
    if BY == "tracehook":
        return nullcontext
    scope = new_pool()
    backend().register_mem_pool(pools[-1])
    return scope


def symmetric_memory(*groups: dist.ProcessGroup) -> Scope:
    """Return where tensors become symmetric: in a pool that torch registered so, or in tracehook's scopes."""
    wanted = list(groups) or [dist.group.WORLD]
    if BY == "tracehook":
        return lambda: tracehook.symmetric(wanted)
    scope = new_pool()
    for group in wanted:
        backend(group).register_mem_pool(pools[-1], symm=True)
    return scope


def made(scope: Scope, value: float = 0, size_mb: float = 32) -> torch.Tensor:
    with scope():
        tensor = empty(size_mb)
    return refill(tensor, value)


def reduced(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """Return the first element of the sum, which may be wrong."""
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def tell_calls() -> None:
    """Tell which registrations NCCL was asked for."""
    tell(
        registered=nccl_calls("ncclCommRegister"),
        undone=nccl_calls("ncclCommDeregister"),
        windows=nccl_calls("ncclCommWindowRegister"),
        dropped=nccl_calls("ncclCommWindowDeregister"),
    )


# --- ends ---


def after_the_end() -> None:
    """Allocate and give a pool up when all groups are gone."""
    start()
    scope = registered_memory()
    tensor = made(scope)
    tell(sum=reduced(tensor))
    dist.destroy_process_group()
    tell_calls()
    del tensor
    tell(allocation=caught(lambda: made(scope, size_mb=64))[1])
    pools.clear()


def abort() -> None:
    """Abort a group that has a window."""
    start()
    tensor = made(symmetric_memory(), RANK + 1)
    tell(sum=reduced(tensor))
    meet()
    attempt(lambda: dist.group.WORLD.abort())
    tell_calls()


# --- births ---


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    """Start a thread that acts as soon as the first registration is under way, which is slow."""

    def wait() -> None:
        while nccl_calls("ncclCommRegister") == 0:
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def stalled() -> None:
    """While a group is made, memory of another device is taken from the cache."""
    early = filled(1, 24, "cuda:0")
    torch.empty(MB, device="cuda:1")  # cached from now on
    begin = time.monotonic()  # before the registration, so that whoever waits for that waits for all of it

    def allocate() -> None:
        torch.empty(MB, device="cuda:1")
        tell(waited=time.monotonic() - begin)

    thread = meanwhile(allocate)
    start()
    thread.join()
    tell(sum=reduced(early))


def freed() -> None:
    """While a group is made, a segment is freed that is older."""
    early = [filled(1, 24, "cuda:0") for _ in range(2)]

    def free() -> None:
        early.pop()
        torch.cuda.empty_cache()
        tell(calls=nccl_calls("ncclCommRegister"))

    thread = meanwhile(free)
    tell(error=caught(start)[1])
    thread.join()
    tell_calls()


# --- what is registered ---


def becomes_symmetric() -> None:
    """Memory that the group has registered locally is to get a window."""
    device = start()
    if BY == "torch":
        tensor = made(new_pool())
        backend().register_mem_pool(pools[0])
        tell(error=caught(lambda: backend().register_mem_pool(pools[0], symm=True))[1])
    else:
        other = dist.new_group(list(range(WORLD)), device_id=device)
        tensor = made(lambda: tracehook.symmetric(other))
        address = tensor.data_ptr()
        tell(before=tracehook.is_symmetric(tensor))
        del tensor
        tensor = made(symmetric_memory())
        tell(same=tensor.data_ptr() == address, symmetric=tracehook.is_symmetric(tensor))
    refill(tensor, RANK + 1)
    tell(sum=reduced(tensor))
    if BY == "torch":
        tell(undoing=caught(lambda: backend().deregister_mem_pool(pools[0]))[1])
    tell_calls()


def expandable() -> None:
    """Expandable segments, from now on."""
    device = start()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    before = nccl_calls("ncclCommRegister")
    tensor = filled(1, 32, device)
    tell(sum=reduced(tensor), registered=nccl_calls("ncclCommRegister") - before)


def was_expandable() -> None:
    """An expandable segment is older than the group, and goes when expandable segments are switched off."""
    device = torch.device("cuda", 0)
    early = filled(1, 32, device)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    start()
    tell(before=nccl_calls("ncclCommRegister"))
    del early
    torch.cuda.empty_cache()
    tensor = filled(1, 32, device)
    tell(sum=reduced(tensor), registered=nccl_calls("ncclCommRegister"))


def symmetric_expandable() -> None:
    """Symmetric memory where segments are expandable; torch's pool is registered while it is empty, or filled."""
    start()
    scope = symmetric_memory() if BY == "tracehook" else new_pool(torch.cuda.MemPool())
    if (BY, *HOW) == ("torch", "empty"):
        backend().register_mem_pool(pools[0], symm=True)
    tensor = made(scope, RANK + 1, 48)
    if (BY, *HOW) == ("torch", "filled"):
        backend().register_mem_pool(pools[0], symm=True)
    attempt(lambda: tell(sum=reduced(tensor)))
    tell_calls()


def pluggable() -> None:
    """The program has an allocator of its own in place of torch's."""
    runtime = ctypes.CDLL(None)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    def take(size: int, _device: int, _stream: int) -> int | None:
        found = ctypes.c_void_p()
        runtime.cudaMalloc(ctypes.byref(found), ctypes.c_size_t(size))
        return found.value

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    def give(address: int, _size: int, _device: int, _stream: int) -> None:
        runtime.cudaFree(ctypes.c_void_p(address))

    both = [ctypes.cast(function, ctypes.c_void_p).value for function in (take, give)]
    torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(torch._C._cuda_customAllocator(*both)))
    error = caught(start)[1]
    tell(error=error)
    if error is None:
        tell(sum=reduced(filled(1, 1, "cuda")))
        dist.destroy_process_group()


def unsupported() -> None:
    """Symmetric memory of a communicator that has none."""
    start()
    tensor = attempt(lambda: made(symmetric_memory(), RANK + 1))
    if tensor is not None:
        tell(sum=reduced(tensor))
    if BY == "tracehook":
        tell(reason=tracehook.explain(tensor).reason)


def before_the_communicator() -> None:
    """Symmetric memory of a group that has made no communicator yet."""
    start(bind=False)
    tensor = attempt(lambda: made(symmetric_memory(), RANK + 1))
    tell_calls()
    if tensor is not None:
        tell(sum=reduced(tensor))


# --- ranks that come apart ---


def grows() -> None:
    """Rank 0 needs more memory, and rank 1 does later."""
    start()
    scope = symmetric_memory()
    kept = [made(scope)]
    if RANK == 0:
        with in_vain():
            kept.append(attempt(lambda: made(scope)))
    meet()
    if RANK == 1:
        kept.append(attempt(lambda: made(scope)))
    meet()
    if BY == "tracehook":
        tensor = made(scope, RANK + 1)
        tell(symmetric=tracehook.is_symmetric(tensor), sum=reduced(tensor))


def opposite_order() -> None:
    """The ranks make two tensors in opposite order, of one size or two."""
    start()
    scope = symmetric_memory()
    sizes = {"A": 32, "B": 32 if "equal" in HOW else 64}

    def both() -> dict[str, torch.Tensor]:
        with scope():
            return {name: empty(sizes[name]) for name in ("AB" if RANK == 0 else "BA")}

    tensors = attempt(both)
    if tensors is not None:
        refill(tensors["A"], RANK + 1)
        refill(tensors["B"], 100 * (RANK + 1))
        attempt(lambda: tell(sum=reduced(tensors["A"])))


def reused() -> None:
    """Rank 0 has freed a tensor and gets its place again; rank 1 still has it, and gets another place."""
    start()
    scope = symmetric_memory()
    old, other = made(scope, 0, 4), made(scope, 0, 4)
    kept = refill(old, 1000) if RANK == 1 else None
    del old
    new = made(scope, RANK + 1, 4)
    attempt(lambda: tell(sum=reduced(new)))
    tell_calls()
    del kept, other


def groups_in_opposite_order() -> None:
    """The ranks register one memory with two groups, in opposite order."""
    device = start()
    groups = [dist.new_group(list(range(WORLD)), device_id=device) for _ in range(2)]
    mine = groups if RANK == 0 else groups[::-1]

    def act() -> torch.Tensor:
        if BY == "tracehook":
            return made(symmetric_memory(*mine))
        tensor = made(new_pool())
        for group in mine:
            backend(group).register_mem_pool(pools[0], symm=True)
        return tensor

    tensor = attempt(act)
    if tensor is not None:
        tell(sums=[reduced(refill(tensor, RANK + 1), group) for group in groups])


def many_groups() -> None:
    """One memory is registered with many groups, all in one order; each group lies elsewhere in each rank's memory.

    Torch keeps its communicators in a hash map. There, addresses at equal distances never share a bucket, and the map
    keeps the order in which they came. So the distances are chosen by chance, and differ from rank to rank.
    """
    device = start()
    groups, ballast = [], []
    chance = random.Random(RANK)
    for _ in range(24):
        groups.append(dist.new_group(list(range(WORLD)), device_id=device))
        ballast.append([bytearray(chance.randrange(600, 8000)) for _ in range(40)])
    scope = symmetric_memory(*groups)
    tensor = attempt(lambda: made(scope))
    if tensor is not None:
        tell(sums=[reduced(refill(tensor, RANK + 1), group) for group in groups])
    tell_calls()


# --- captures ---


def capture() -> None:
    """Symmetric memory that grows while a graph is captured."""
    device = start()
    scope = symmetric_memory()
    reduced(made(scope))
    source = filled(RANK + 1, 48, device)
    graph = torch.cuda.CUDAGraph()

    def record() -> torch.Tensor:
        with torch.cuda.graph(graph):
            with scope():
                out = empty(48)
            out.copy_(source)
            dist.all_reduce(out)
        return out

    out = attempt(record)
    if out is not None:
        graph.replay()
        tell(sum=out[0].item())
    if BY == "tracehook":
        tell(reason=tracehook.explain(out).reason, synced=tracehook.sync(), later=tracehook.explain(out).reason)


globals()[WHAT]()
tell(end="reached")
if dist.is_initialized():
    meet()
    if BY == "torch":
        os._exit(0)  # what torch left behind may hang
    torch.cuda.synchronize()
    dist.destroy_process_group()
