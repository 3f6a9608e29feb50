"""Allocation and empty_cache after the end of all groups."""

import torch
import torch.distributed as dist

from common import MB, filled, start, tell

device = start()
tensor = filled(1, 24, device)
dist.all_reduce(tensor)
dist.destroy_process_group()

for name, act in (
    ("allocation", lambda: torch.empty(256 * MB, dtype=torch.uint8, device=device)),
    ("empty_cache", torch.cuda.empty_cache),
):
    del tensor
    try:
        tensor = act()
        tell(**{name: "ok"})
    except RuntimeError as problem:
        tensor = None
        tell(**{name: str(problem)})
