"""Memory of torch's own symmetric memory, on two ranks: what docs/registration.md says of it."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import tracehook

from common import MB, RANK, raised, start, tell

device = start()
if sys.argv[1] == "NCCL":  # else torch takes CUDA
    symm_mem.set_backend("NCCL")
dist.all_reduce(torch.ones(4, device=device))
group = dist.group.WORLD
a, b = (symm_mem.empty(MB, device=device) for _ in range(2))
for named in [what for what in ("alike", "names", "shapes", "place", "late") if what in sys.argv]:
    # Rank 1 differs: the tensor of another name, another shape of the same bytes, another place, or no call at all.
    other = RANK == 1 and named != "alike"
    tensor, name = (b, "b") if other and named == "names" else (a, "a")
    tensor = tensor.view(2, -1) if other and named == "shapes" else tensor
    tensor = tensor[1:] if other and named == "place" else tensor
    if other and named == "late":
        tell(late="")
    else:
        tell(**{named: raised(tracehook.rendezvous, tensor, group, name=name)})
if "swapped" in sys.argv:
    tell(swapped=raised(symm_mem.rendezvous, a if RANK == 0 else b, group))
if "backend" in sys.argv:
    tell(backend=raised(symm_mem.set_backend, "NCCL"))
if "uneven" in sys.argv:
    uneven = symm_mem.empty(MB * (1 + RANK), device=device)
    tell(uneven=raised(symm_mem.rendezvous, uneven, group))
    os._exit(0)
dist.destroy_process_group()
