"""Two ranks that make buffers under the policy ``measured``; the first argument says which tables they have."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.tuning.machine import this_machine
from tracehook.tuning.table import Point, Row, Table

from common import RANK, start, tell

CASE, FOLDER = sys.argv[1], Path(sys.argv[2])
RANKS = 4 if CASE == "elsewhere" else 2


def point(nbytes: int, plain: float, symmetric: float) -> Point:
    """Return one of these times."""
    return Point(nbytes, plain, symmetric, plain / symmetric)


device = start()
machine = this_machine(device.index)
if CASE == "machine":
    machine = replace(machine, gpu="NVIDIA A100", nccl="2.20.5")
rows = {
    Row("all_reduce", "bfloat16", True, RANKS, 1): [point(1024, 20, 10), point(2048, 20, 19.9), point(4096, 20, 30)],
    Row("all_reduce", "bfloat16", False, RANKS, 1): [point(1024, 20, 25), point(2048, 20, 10), point(4096, 20, 10)],
    Row("all_gather", "bfloat16", False, RANKS, 1): [point(1024, 20, 10), point(2048, 20, 40), point(4096, 20, 10)],
}
table = Table(machine, margin=0.05 if CASE == "differ" and RANK == 1 else 0.01, rows=rows)
path = FOLDER / f"tuned{RANK}.json"
if not (CASE == "missing" and RANK == 1):
    path.write_text(table.as_json())
os.environ["SYMM_REGISTER_TUNED"] = str(path)

SIZES = (512, 1024, 1500, 2048, 4096, 8192)  # bytes
found = {}
for graph in (True, False):
    for nbytes in SIZES:
        made = tracehook.empty(nbytes // 2, dtype=torch.bfloat16, operation="all_reduce", graph=graph)
        found[f"{'graph' if graph else 'eager'} {nbytes}"] = tracehook.is_symmetric(made)
with tracehook.symmetric(operation="all_reduce", nbytes=2048, graph=True):
    found["scope"] = tracehook.is_symmetric(torch.empty(1024, dtype=torch.bfloat16, device=device))
with tracehook.symmetric():
    outside = torch.empty(1024, dtype=torch.bfloat16, device=device)
found["scope without hints"] = tracehook.is_symmetric(outside)
for nbytes in (1024, 2048, 4096):  # of what all ranks gather
    shard = torch.ones(nbytes // 4, dtype=torch.bfloat16, device=device)
    found[f"gathered {nbytes}"] = tracehook.is_symmetric(tracehook.all_gather_into_tensor(shard))
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    tracehook.reserve(1 << 20, graph=True)
with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
    for nbytes in (1024, 2048):  # without a word about the capture
        made = tracehook.empty(nbytes // 2, dtype=torch.bfloat16, operation="all_reduce")
        found[f"captured {nbytes}"] = tracehook.is_symmetric(made)
summed = tracehook.empty(512, dtype=torch.bfloat16, operation="all_reduce", graph=True)
summed.copy_(torch.full((512,), RANK + 1.0, dtype=torch.bfloat16))
dist.all_reduce(summed)
tell(found=found, sum=summed.cpu().float()[0].item())
dist.destroy_process_group()
