"""A server whose symmetric memory tracehook makes. Arguments: the server, the cases, each of which is a function."""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import stand_ins
import torch
import torch.distributed as dist
from server import MB, RANK, WORLD, end, reduce, start, tell

import tracehook

server = start()
is_symmetric = getattr(
    server.module,
    "is_tensor_in_symmetric_mempool" if sys.argv[1] == "sglang" else "is_symmetric_memory_tensor",
)


def windows() -> Mapping[str, Any]:
    """Return what tracehook knows of the communicator's windows."""
    (row,) = tracehook.status()["windows"]
    return row


def made(size: int = MB) -> torch.Tensor:
    """Make a tensor of so many elements in the server's context."""
    with server.scope():
        return torch.empty(size, device="cuda")


def summed(tensor: torch.Tensor) -> float:
    """Fill a tensor with rank + 1, sum it over the ranks, and return an element: 3.0 if all is well."""
    tensor.copy_(torch.full(tensor.shape, RANK + 1.0))
    return float(reduce(server.communicator, tensor)[0].cpu())


def graph() -> None:
    """Warm up twice, capture, and launch, as the servers do. Then capture what was not warmed up."""
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    source = torch.ones(MB, device="cuda")
    graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]

    def forward(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        tensor = made(size)
        tensor[:MB].copy_(source)
        return tensor, reduce(server.communicator, tensor)

    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.cuda.synchronize()
            dist.barrier()
            forward(MB)
    tell(warm=windows()["windows"])
    server.module.set_graph_pool_id(pool)
    with torch.cuda.graph(graphs[0], pool=pool, stream=stream):
        tensor, result = forward(MB)
        beside = torch.empty(MB, device="cuda")
    tell(captured=windows()["windows"], deferred=windows()["deferred"])
    tell(symmetric=tracehook.is_symmetric(tensor, communicator=server.communicator), beside=is_symmetric(beside))
    sums = []
    for value in (2.0, 3.0):
        source.copy_(torch.full(source.shape, value + RANK))
        graphs[0].replay()
        sums.append(float(result[0].cpu()))
    with torch.cuda.graph(graphs[1], pool=pool, stream=stream):
        _, late = forward(32 * MB)
    tell(late_deferred=windows()["deferred"])
    with torch.cuda.stream(stream):
        forward(MB)
    tell(later=windows()["windows"], left_deferred=windows()["deferred"])
    graphs[1].replay()
    tell(sums=[*sums, float(late[0].cpu())])
    for captured in graphs:
        captured.reset()


def contexts() -> None:
    """Disabled contexts, contexts inside of each other, on another thread, and one that an exception leaves."""
    seen = {}
    with server.context(SimpleNamespace(world_size=1)):
        seen["alone"] = is_symmetric(torch.empty(MB, device="cuda"))
    with server.context(server.group, disabled=True):
        seen["disabled"] = is_symmetric(torch.empty(MB, device="cuda"))
    with server.scope():
        inner = made()
        outer = torch.empty(MB, device="cuda")
    seen |= {"inner": is_symmetric(inner), "outer": is_symmetric(outer), "part": is_symmetric(outer[5:])}
    sums = [summed(inner), summed(outer)]

    def elsewhere() -> None:
        torch.cuda.set_device(RANK)
        sums.append(summed(made()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with contextlib.suppress(KeyError), server.scope():
        raise KeyError
    tell(seen=seen, sums=[*sums, summed(made())])


def reserved() -> None:
    """What is reserved at the start serves later contexts, which register nothing."""
    if sys.argv[1] == "sglang":
        stream = torch.cuda.current_stream()
        server.module.prealloc_symmetric_memory_pool(
            is_draft_worker=False, enable_symm_mem=True, device="cuda", forward_stream=stream
        )
    else:
        tracehook.reserve(64 * MB, communicator=server.communicator, graph=True)
    tell(before=windows()["windows"])
    tell(sums=[summed(made(size)) for size in (MB, 8 * MB, MB // 8, 3 * MB)], after=windows()["windows"])


def paused() -> None:
    """On the first rank alone a context is interrupted: what is made meanwhile is ordinary memory."""
    outside = server.module.disable_symmetric_memory_context()
    server.module.restore_symmetric_memory_context(outside)
    with server.scope():
        first = torch.empty(MB, device="cuda")
        if RANK == 0:
            saved = server.module.disable_symmetric_memory_context()
            tell(paused=is_symmetric(torch.empty(64 * MB, device="cuda")))
            server.module.restore_symmetric_memory_context(saved)
        second = torch.empty(MB, device="cuda")
    tell(outside=outside, second=is_symmetric(second), sums=[summed(first), summed(second)])


def buffer() -> None:
    """SGLang's buffer apart from the pool, its debug check, and what its watchdog reads."""
    found, is_window = server.module.allocate_symmetric_buffer(server.communicator, 4 * MB)
    tell(
        is_window=is_window,
        symmetric=tracehook.is_symmetric(found, communicator=server.communicator),
        bytes=found.nbytes,
        registering=server.module.describe_registration_in_progress(),
    )
    lines: list[str] = []
    server.module._symm_mem_logger.warning = lambda text, *given: lines.append(text % given)
    names = {"buffer": found, "context": made(), "ordinary": torch.empty(MB, device="cuda")}
    server.module.debug_check_symmetric_mempool(server.group, names, "all_reduce")
    tell(lines=lines)


def watched() -> None:
    """The first rank waits at the end of a context: another thread reads which registration it waits in."""
    board = dist.FileStore(os.environ["TEST_STORE"] + ".board", WORLD)

    def read() -> None:
        while (registering := server.module.describe_registration_in_progress()) is None:
            time.sleep(0.01)
        tell(registering=registering)
        board.set("read", "")

    if RANK == 0:
        thread = threading.Thread(target=read, daemon=True)  # where nothing waits, the test fails and does not hang
        thread.start()
        made(16 * MB)
        thread.join()
    else:
        board.wait(["read"])
        made(16 * MB)
    tell(handle=server.communicator.comm.value, after=server.module.describe_registration_in_progress())


def compiled() -> None:
    """Enter a context in code for torch.compile, which leaves it to Python."""

    def step(source: torch.Tensor) -> torch.Tensor:
        tensor = made()
        tensor.copy_(source)
        return tensor

    source = torch.full((MB,), RANK + 1.0).to("cuda")
    results = [torch.compile(step, backend="eager")(source) for _ in range(3)]
    tell(seen=[is_symmetric(result) for result in results], sums=[summed(result) for result in results])


def switched_off() -> None:
    """Without tracehook the server's own contexts serve, behind the names that are still replaced."""
    first = made(8 * MB)
    tracehook.disable()
    second = made(16 * MB)
    tell(symmetric=[is_symmetric(first), is_symmetric(second)], sums=[summed(first), summed(second)])


def asleep() -> None:
    """The server sleeps twice, and serves in between: SGLang in two steps, vLLM in one."""
    names = {
        "sglang": (
            "sglang.srt.managers.scheduler_components.weight_updater",
            "release",
            "resume",
            "_memory_occupation",
        ),
        "vllm": ("vllm.v1.worker.gpu_worker", "sleep", "wake_up", ""),
    }
    module, sleep, wake, end_of_name = names[sys.argv[1]]
    worker = sys.modules[module].Worker()
    kept = made()
    other = type(server.communicator)(dist.group.WORLD, RANK)
    if RANK == 0:  # which only asks: the other rank knows nothing of it
        tracehook.is_symmetric(kept, communicator=other)
    suspended: list[bool] = []

    def look() -> None:
        suspended.append(any(row["suspended"] for row in tracehook.status()["communicators"]))

    for _ in range(2):
        look()
        if sys.argv[1] == "sglang":
            getattr(worker, sleep + end_of_name)(SimpleNamespace(tags=["kv_cache"]))
            look()
        getattr(worker, sleep + end_of_name)()
        look()
        getattr(worker, wake + end_of_name)()
        look()
        tell(sums=[summed(kept), summed(made())])
    tell(suspended=suspended)
    ctypes.CDLL(stand_ins.LIBRARY).ncclCommAbort(other.comm)


globals()[sys.argv[2]]()
end(server.communicator)
