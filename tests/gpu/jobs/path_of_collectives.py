"""Compare the path that explain names for a collective with the kernel that the profiler shows, case by case.

    SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 2 tests/gpu/jobs/path_of_collectives.py [hosts]

`hosts`: NCCL takes each rank for a host of its own, and they talk through sockets.
Rank 0 prints one line of JSON for each case. A case that differs, on any rank, ends the job with status 1.
"""

import ctypes
import itertools
import json
import os
import re
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import tracehook

KB, MB = 1 << 10, 1 << 20
SIZES = (KB, MB, 64 * MB)  # bytes of the smaller buffer
TYPES = {torch.float32: 7, torch.bfloat16: 9, torch.int32: 2}  # with NCCL's number of each
WINDOWS = {"both": (True, True), "send": (True, False), "receive": (False, True), "none": (False, False)}
NCCL_SUM = 0

if "hosts" in sys.argv:
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
RANK, WORLD = dist.get_rank(), dist.get_world_size()
nccl = ctypes.CDLL("libnccl.so.2")
pointer = ctypes.c_void_p


def memory(in_window: bool) -> torch.Tensor:
    """Return room for the largest buffer of a case."""
    with tracehook.symmetric(disabled=not in_window):
        return torch.zeros(SIZES[-1] * WORLD, dtype=torch.uint8, device=device)


def all_reduce(out: torch.Tensor, source: torch.Tensor) -> None:
    """Reduce from one buffer into another, which torch does not."""
    communicator = dist.group.WORLD._get_backend(device)._comm_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    count, kind = ctypes.c_size_t(out.numel()), TYPES[out.dtype]
    buffers = pointer(source.data_ptr()), pointer(out.data_ptr())
    status = nccl.ncclAllReduce(*buffers, count, kind, NCCL_SUM, pointer(communicator), pointer(stream))
    assert status == 0, f"ncclAllReduce: {status}"


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "all_reduce": all_reduce,
    "all_gather": dist.all_gather_into_tensor,
    "reduce_scatter": dist.reduce_scatter_tensor,
}


def seen(call: Callable[[], object]) -> tuple[str, list[str]]:
    """Run the call; return the path that the profiler shows, and the names of what ran on the device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    names = sorted({event.name for event in profiler.events() if re.search("nccl|memcpy", event.name, re.I)})
    for path, pattern in (
        ("symmetric", "ncclSymk?DevKernel"),
        ("plain", "ncclDevKernel"),
        ("copy_engine", "(?i)memcpy"),
    ):
        if any(re.search(pattern, name) for name in names):
            return path, names
    return "nothing", names


places = {(role, inside): memory(inside) for role in ("send", "receive") for inside in (True, False)}
dist.all_reduce(torch.ones(1, device=device))
seen(lambda: dist.all_reduce(torch.ones(1, device=device)))  # the first profile has what the others need not wait for

rows = []
for operation, dtype, windows, nbytes in itertools.product(CALLS, TYPES, WINDOWS, SIZES):
    sends, receives = WINDOWS[windows]
    source_bytes = nbytes * (WORLD if operation == "reduce_scatter" else 1)
    out_bytes = nbytes * (WORLD if operation == "all_gather" else 1)
    source = places["send", sends][:source_bytes].view(dtype)
    out = places["receive", receives][:out_bytes].view(dtype)
    said = tracehook.explain(out, operation=operation, other=source)
    path, names = seen(lambda: CALLS[operation](out, source))  # noqa: B023
    agrees = path == said.path or (said.path == "depends" and path in ("symmetric", "plain"))
    case = {"operation": operation, "dtype": str(dtype), "windows": windows, "nbytes": nbytes}
    rows.append({**case, "said": said.path, "reason": said.path_reason, "seen": path, "agrees": agrees, "names": names})
    if RANK == 0:
        os.write(1, f"\n{json.dumps(rows[-1])}\n".encode())  # torch's profiler leaves a line without its end

differ = [row for row in rows if not row["agrees"]]
if RANK == 0:
    told = {"nccl": tracehook.status()["nccl"], "rows": len(rows), "differ": len(differ)}
    os.write(1, f"\n{json.dumps(told)}\n".encode())
dist.barrier()
dist.destroy_process_group()
if differ:
    sys.exit(f"rank {RANK}: {len(differ)} of {len(rows)} paths differ, the first: {json.dumps(differ[0])}")
