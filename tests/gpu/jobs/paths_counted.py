"""Compare the paths that tracehook counts with the kernels that the profiler shows, over ten sizes.

    SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 2 tests/gpu/jobs/paths_counted.py [hosts]

`hosts`: NCCL takes each rank for a host of its own, and they talk through sockets.
Rank 0 prints one line of JSON for each case. A case that differs, on any rank, ends the job with status 1.
"""

import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import tracehook
from tracehook.nccl.counts import path_counts

SIZES = [3 << shift for shift in range(8, 27, 2)]  # bytes of NCCL's count: 768 bytes to 192 MiB
CALLS, REPLAYS = 3, 2
NAMES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}  # in kernels
SYMMETRIC, PLAIN = "ncclSymk?DevKernel", "ncclDevKernel"

if "hosts" in sys.argv:
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


def memory(in_window: bool) -> dict[str, torch.Tensor]:
    """Return room for the largest part, and for that of all ranks."""
    with tracehook.symmetric(disabled=not in_window):
        return {name: torch.zeros(SIZES[-1] * n // 4, device=device) for name, n in (("part", 1), ("whole", WORLD))}


def call_of(operation: str, room: dict[str, torch.Tensor], nbytes: int) -> Callable[[], object]:
    """Return the operation on buffers of that size."""
    part, whole = room["part"][: nbytes // 4], room["whole"][: nbytes * WORLD // 4]
    return {
        "all_reduce": lambda: dist.all_reduce(part),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }[operation]


def counts() -> Counter[tuple[str, int, str, bool]]:
    """Return what was counted so far: operation, bucket, path, captured."""
    found: Counter[tuple[str, int, str, bool]] = Counter()
    for row in path_counts():
        found[row[3:7]] += row.count
    return found


def seen(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Run the call; return how many kernels of NCCL the profiler shows: the operation in the name, and the path."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    found: Counter[tuple[str, str]] = Counter()
    for event in profiler.events():
        if "nccl" not in event.name.lower() or "memcpy" in event.name.lower():
            continue
        operation = next((name for name, part in NAMES.items() if part in event.name), event.name)
        path = "symmetric" if re.search(SYMMETRIC, event.name) else "plain" if re.search(PLAIN, event.name) else ""
        if path:
            found[operation, path] += 1
    return found


def times(call: Callable[[], object]) -> None:
    """Make the call several times."""
    for _ in range(CALLS):
        call()


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture it once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def agrees(counted: Counter[tuple[str, int, str, bool]], kernels: Counter[tuple[str, str]], calls: int) -> bool:
    """Whether each counted call is a kernel of its path, as often as the calls ran; unknown may be either."""
    (((_, _, path, _), _),) = counted.items()
    shown = {kind[1]: count for kind, count in kernels.items()}
    return sum(shown.values()) == calls and (path == "unknown" or set(shown) == {path})


rooms = {inside: memory(inside) for inside in (False, True)}
dist.all_reduce(torch.ones(1, device=device))
seen(lambda: dist.all_reduce(torch.ones(1, device=device)))  # the first profile has what the others need not wait for

rows = []
for operation, inside, nbytes, is_captured in itertools.product(NAMES, rooms, SIZES, (False, True)):
    call = call_of(operation, rooms[inside], nbytes)
    call()
    torch.cuda.synchronize()
    before = counts()
    if is_captured:
        graph = captured(call)
        kernels = seen(lambda: [graph.replay() for _ in range(REPLAYS)])  # noqa: B023
    else:
        kernels = seen(lambda: times(call))  # noqa: B023
    made = counts() - before
    bucket = 1 << nbytes.bit_length() >> 1
    wanted = 1 if is_captured else CALLS
    is_exact = len(made) == 1 and list(made.values()) == [wanted]
    is_exact = is_exact and next(iter(made))[:2] == (operation, bucket) and next(iter(made))[3] == is_captured
    case = {"operation": operation, "in_window": inside, "nbytes": nbytes, "captured": is_captured, "exact": is_exact}
    case["counted"] = [[*kind, count] for kind, count in made.items()]
    case["kernels"] = [[*kind, count] for kind, count in kernels.items()]
    rows.append({**case, "agrees": is_exact and agrees(made, kernels, REPLAYS if is_captured else CALLS)})
    if RANK == 0:
        os.write(1, f"\n{json.dumps(rows[-1])}\n".encode())  # torch's profiler leaves a line without its end

differ = [row for row in rows if not row["agrees"]]
inexact = [row for row in rows if not row["exact"]]
if RANK == 0:
    told = {"nccl": tracehook.status()["nccl"], "rows": len(rows), "inexact": len(inexact), "differ": len(differ)}
    os.write(1, f"\n{json.dumps(told)}\n".encode())
torch.cuda.synchronize()
tracehook.release_graphs()
graph.reset()
dist.barrier()
dist.destroy_process_group()
if differ:
    sys.exit(f"rank {RANK}: {len(differ)} of {len(rows)} counts differ, the first: {json.dumps(differ[0])}")
