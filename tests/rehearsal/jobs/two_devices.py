"""Segments on two devices of one process, older than the communicators; the current device is watched throughout."""

import ctypes

import torch
import torch.distributed as dist

from common import MB, filled, start, tell

moved: list[list[object]] = []


def watch(step: str, expected: int) -> None:
    # The runtime's own word, not torch's, which restores what its guards saw.
    seen = ctypes.CDLL(None).emu_current_device()
    if seen != expected:
        moved.append([step, expected, seen])


early = [torch.empty(24 * MB, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
start(bind=False)
try:
    dist.all_reduce(early[0])
except RuntimeError as problem:
    tell(first=str(problem))
    raise
tell(first="ok")
watch("the first communicator", 0)

for current in (0, 1):
    torch.cuda.set_device(current)
    for index in (0, 1):
        tensor = filled(1, 24, f"cuda:{index}")
        watch(f"allocate on {index}", current)
        dist.all_reduce(tensor)
        watch(f"all_reduce on {index}", current)
        group = dist.new_group([0])
        dist.all_reduce(tensor, group=group)
        watch(f"first all_reduce of a group on {index}", current)
        dist.destroy_process_group(group)
        watch(f"destroy a group on {index}", current)
        del tensor
        torch.cuda.empty_cache()
        watch(f"empty_cache on {index}", current)
pair = [filled(1, 1, f"cuda:{index}") for index in (0, 1)]
torch.cuda.nccl.all_reduce(pair)
watch("all_reduce of two devices", 1)
tell(moved=moved, pair=[part.cpu()[0].item() for part in pair])
dist.destroy_process_group()
watch("destroy", 1)
tell(moved=moved)
