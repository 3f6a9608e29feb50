"""Expandable segments that grow and shrink, and what tracehook knows of them. Argument: when to enable."""

import sys

import torch
import torch.distributed as dist
import tracehook
from tracehook import _core

from common import filled, start, tell


def mapped_for_torch() -> list[list[int]]:
    """Return (address, bytes) of what torch says is mapped, neighbours as one, by address."""
    ranges: list[list[int]] = []
    for segment in sorted(torch.cuda.memory_snapshot(include_traces=False), key=lambda one: one["address"]):
        if not segment["is_expandable"]:
            continue
        if ranges and sum(ranges[-1]) == segment["address"]:
            ranges[-1][1] += segment["total_size"]
        else:
            ranges.append([segment["address"], segment["total_size"]])
    return ranges


def compare(at: str) -> None:
    """Tell what is mapped, for torch and for tracehook."""
    ours = [list(row[1:]) for row in _core.mapped()]
    tell(**{at: {"torch": mapped_for_torch(), "ours": ours, "differences": _core.check()}})


device = start()
if sys.argv[1] == "switched_off":
    kept = filled(1, 30, device)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    tracehook.enable()
    compare("adopted")
    tell(status=tracehook.status())
    dist.all_reduce(filled(1, 8, device))
    dist.destroy_process_group()
    sys.exit()
if sys.argv[1] == "late":
    before = [filled(1, size, device) for size in (30, 50)]
    del before[0]
    torch.cuda.empty_cache()
    tracehook.enable()
    compare("adopted")
pieces = [filled(1, size, device) for size in (24, 48, 100, 7, 60)]
dist.all_reduce(pieces[1])
compare("grown")
tell(status=tracehook.status())
del pieces[3], pieces[1]
torch.cuda.empty_cache()
compare("holes")
pieces.append(filled(1, 300, device))
compare("grown_again")
with tracehook.symmetric():
    inside = torch.empty(1 << 20, device=device)
inside.copy_(filled(1, 4, device))
dist.all_reduce(inside)
said = tracehook.explain(pieces[-1])
tell(reason=said.reason, text=said.text, symmetric=tracehook.is_symmetric(inside), sum=inside.cpu()[0].item())
before = []
pieces.clear()
torch.cuda.empty_cache()
compare("freed")
dist.destroy_process_group()
tell(end="reached")
