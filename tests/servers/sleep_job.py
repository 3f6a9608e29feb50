"""Memory of a server that sleeps, by the unchanged library of torch_memory_saver or vLLM; the first argument says it.

The second is the number of cycles, the third the MiB of a shard. After each cycle all memory came back, and the
collectives are right, also those of a graph that was captured before.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

HOOKED = os.environ.get("SYMM_REGISTER_HOOK") == "1"
if HOOKED:
    import tracehook

LIBRARY, CYCLES = sys.argv[1], int(sys.argv[2])
FETCHED = os.environ["FETCHED"]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ELEMENTS = int(sys.argv[3]) << 18
sys.path.insert(0, FETCHED)

CALLBACKS: list[Callable[..., object]] = []  # the library holds no reference to them

Region = Callable[[], contextlib.AbstractContextManager[object]]


def memory_saver() -> tuple[Region, Callable[[], None], Callable[[], None]]:
    """Return the region whose memory sleeps, and what puts it to sleep and wakes it."""
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = "torch"
    return lambda: saver.region(enable_cpu_backup=True), saver.pause, saver.resume


def vllm() -> tuple[Region, Callable[[], None], Callable[[], None]]:
    """Return the same of the module that vLLM's sleep mode calls."""
    import importlib.util

    file = f"{FETCHED}/vllm/cumem_allocator.abi3.so"
    spec = importlib.util.spec_from_file_location("cumem_allocator", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handles: dict[int, tuple[int, int, int, int]] = {}

    def made(handle: tuple[int, int, int, int]) -> None:
        handles[handle[2]] = handle

    CALLBACKS.extend((made, handles.pop))
    module.init_module(*CALLBACKS)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(file, "my_malloc", "my_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    kept: list[torch.Tensor] = []

    @contextlib.contextmanager
    def region() -> Iterator[None]:
        with torch.cuda.use_mem_pool(pool):
            yield

    def sleep() -> None:
        kept.append(shard.cpu())
        for handle in handles.values():
            module.python_unmap_and_release(*handle)

    def wake() -> None:
        for handle in handles.values():
            module.python_create_and_map(*handle)
        shard.copy_(kept.pop())

    return region, sleep, wake


def held() -> tuple[int, int]:
    """Return the segments that torch has, and their bytes."""
    return torch.cuda.memory_stats().get("segment.all.current", 0), torch.cuda.memory_reserved()


device = torch.device("cuda", RANK)
torch.cuda.set_device(device)
dist.init_process_group("nccl", store=dist.FileStore(os.environ["TEST_STORE"], WORLD), rank=RANK, world_size=WORLD)
region, sleep, wake = {"torch_memory_saver": memory_saver, "vllm": vllm}[LIBRARY]()
segments_before, before = held()
with region():
    shard = torch.full((ELEMENTS,), float(RANK + 1)).to(device)
    gathered = torch.empty(ELEMENTS * WORLD, device=device)
segments, size = held()[0] - segments_before, held()[1] - before
beside = torch.empty(ELEMENTS * WORLD, device=device)
with tracehook.symmetric() if HOOKED else contextlib.nullcontext():
    window = torch.full((ELEMENTS,), float(RANK + 1)).to(device)
wrong: list[object] = []
gave_back: list[int] = []


def free_memory() -> int:
    """Return how many bytes the device has free."""
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def use() -> None:
    """Gather the shards into memory that sleeps, and into memory that does not; reduce a window."""
    for target in (gathered, beside):
        dist.all_gather_into_tensor(target, shard)
        if [target[0].item(), target[-1].item()] != [1.0, float(WORLD)]:
            wrong.append([target[0].item(), target[-1].item()])
    total = window.clone()
    dist.all_reduce(window)
    if window[-1].item() != WORLD * (WORLD + 1) / 2 or (HOOKED and not tracehook.is_symmetric(window)):
        wrong.append(window[-1].item())
    window.copy_(total)
    gathered.zero_()
    graph.replay()
    if [gathered[0].item(), gathered[-1].item()] != [1.0, float(WORLD)]:
        wrong.append(["replay", gathered[0].item(), gathered[-1].item()])


def timed(act: Callable[[], None], seconds: list[float]) -> None:
    """Do it, and note how long the host and the device take for it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    act()
    torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begin)


graph = torch.cuda.CUDAGraph()
dist.all_gather_into_tensor(gathered, shard)
with torch.cuda.graph(graph):
    dist.all_gather_into_tensor(gathered, shard)
pauses: list[float] = []
resumes: list[float] = []
use()
for _ in range(CYCLES):
    dist.barrier()
    had = free_memory()
    timed(sleep, pauses)
    gave_back.append(free_memory() - had)
    dist.barrier()
    timed(wake, resumes)
    dist.barrier()
    use()
milliseconds = {name: 1000 * statistics.median(each) for name, each in (("pause", pauses), ("resume", resumes))}
told = {
    "wrong": wrong,
    "segments": segments,
    "bytes": size,
    "gave_back": sorted(set(gave_back)),
    "milliseconds": milliseconds,
}
graph.reset()  # NCCL waits for it
os.write(1, f"fact {RANK} {json.dumps(told)}\n".encode())
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch_memory_saver ends the process with 1 if its pool goes outside of a region
