"""Make known numbers of collectives in plain and symmetric memory, eagerly and captured, and tell what was counted."""

import ctypes
import sys
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
import tracehook
from tracehook.nccl.counts import path_counts

from common import RANK, WORLD, start, tell

SIZES = [3 << shift for shift in range(8, 18)]  # bytes of NCCL's count
REPLAYS = 3
Kinds = Counter[tuple[str, str, int, str, bool]]


def counts() -> Kinds:
    """Return what was counted so far: by communicator, operation, bucket, path, captured."""
    return Counter({(row.comm, *row[3:7]): row.count for row in path_counts()})


def tell_counts(name: str, before: Kinds) -> None:
    """Tell what came on top of `before`, without the communicator if there is one."""
    rows = counts() - before
    tell(**{name: sorted([*kind, count] for kind, count in rows.items())})


def buffer(nbytes: int, in_window: bool) -> torch.Tensor:
    """Return a tensor of that many bytes."""
    with tracehook.symmetric(disabled=not in_window):
        return torch.zeros(nbytes // 4, device=device)


def calls(in_window: bool) -> list[Callable[[], object]]:
    """Return each operation with each size."""
    small, large = buffer(SIZES[-1], in_window), buffer(SIZES[-1] * WORLD, in_window)

    def one(size: int) -> list[Callable[[], object]]:
        part, whole = small[: size // 4], large[: size * WORLD // 4]
        return [
            lambda: dist.all_reduce(part),
            lambda: dist.all_gather_into_tensor(whole, part),
            lambda: dist.reduce_scatter_tensor(part, whole),
        ]

    return [call for size in SIZES for call in one(size)]


def sizes() -> None:
    """Ten sizes of three operations, plain and symmetric: twice eagerly, once captured and then replayed."""
    for in_window in (False, True):
        made = calls(in_window)
        name = "symmetric" if in_window else "plain"
        before = counts()
        for call in made * 2:
            call()
        tell_counts(f"{name}_eager", before)
        torch.cuda.synchronize()
        before = counts()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in made:
                call()
        tell_counts(f"{name}_captured", before)
        before = counts()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        tell_counts(f"{name}_replayed", before)
        graph.reset()
        tracehook.release_graphs()
    before = counts()
    dist.broadcast(buffer(1024, in_window=True), 0)
    dist.all_reduce(buffer(1024, in_window=True).to(torch.int32))
    dist.all_reduce(torch.zeros(0, device=device))
    maximum = buffer(1024, in_window=True)
    dist.all_reduce(maximum, dist.ReduceOp.MAX)
    tell_counts("others", before)
    tell(nbytes=sum(row.nbytes for row in path_counts() if row.operation == "reduce_scatter" and row.captured))


def groups() -> None:
    """Three collectives of one NCCL group, and one alone in its group."""
    tensors = [buffer(4096, in_window=True) for _ in range(3)]
    dist.all_reduce(tensors[0])
    before = counts()
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)
    tell_counts("three", before)
    before = counts()
    dist.all_reduce(tensors[0])
    tell_counts("alone", before)
    nccl = ctypes.CDLL("libnccl.so.2")
    before = counts()
    nccl.ncclGroupStart()
    dist.all_reduce(tensors[0])
    tell_counts("open", before)
    nccl.ncclGroupEnd()
    torch.cuda.synchronize()
    tell_counts("ended", before)
    before = counts()
    signed = torch.ones(1024, dtype=torch.int8, device=device)
    nccl.ncclGroupStart()
    dist.all_reduce(signed)
    nccl.ncclGroupEnd()
    torch.cuda.synchronize()
    tell_counts("signed_bytes", before)
    before = counts()
    nccl.ncclGroupStart()
    for tensor in tensors[:2]:
        dist.all_reduce(tensor)
    dist.broadcast(tensors[2], 0)
    nccl.ncclGroupEnd()
    torch.cuda.synchronize()
    tell_counts("mixed", before)


def many() -> None:
    """More kinds of calls than there is room for: types, reductions and sizes."""
    types = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
    reductions = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)
    for kind in types:
        for reduction in reductions:
            for size in range(14):
                dist.all_reduce(torch.zeros(1 << size, dtype=kind, device=device), reduction)
    torch.cuda.synchronize()
    tell(
        made=len(types) * len(reductions) * 14, others=sum(row.count for row in path_counts() if row.path == "unknown")
    )


device = start()
dist.all_reduce(torch.zeros(1, device=device))
{"sizes": sizes, "groups": groups, "many": many}[sys.argv[1]]()
torch.cuda.synchronize()
tracehook.status()  # the groups have names in the log before they end
dist.destroy_process_group()
tell(rank=RANK, at_end=sum(row.count for row in path_counts()))
