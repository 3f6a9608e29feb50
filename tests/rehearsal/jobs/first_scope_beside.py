"""The first scope of a group while another thread makes the first collective of that group.

Rank 0's thread begins, and waits for that of rank 1 while rank 0 ends its scope. By case, rank 1 ends its scope before
its own thread begins, or when that is done. In case "alone" rank 0 has no other thread: its scope begins when its
collective is done. In case "two groups" rank 1 begins a scope of two groups before, and rank 0 after it is done.
"""

import functools
import time

import torch
import torch.distributed as dist
import tracehook

from common import RANK, beside, start, tell, until

device = start(bind=False, seconds=20)
store = dist.distributed_c10d._get_default_store()
found: dict[str, list[float]] = {}


def first_collective(case: str, group: dist.ProcessGroup) -> None:
    """Make it: rank 0 at once, rank 1 when rank 0 likely waits at the end of its scope."""
    if RANK == 1:
        store.wait([f"{case} begun"])
        time.sleep(0.5)
    sums = torch.full((1024,), float(RANK + 1), device=device)
    dist.all_reduce(sums, group=group)
    found[case].append(sums.sum().item())


older = dist.new_group(backend="nccl")
with tracehook.symmetric(older):
    kept = torch.empty(1024, device=device)
for case in ("before", "after", "alone", "two groups"):
    found[case] = []
    group = dist.new_group(backend="nccl")
    backend = group._get_backend(device)
    act = functools.partial(first_collective, case, group)
    is_alone = case == "alone" and RANK == 0
    with beside(*[] if is_alone else [act]):
        if RANK == 0:
            until(lambda: is_alone or backend._get_sequence_number_for_group() > 0)  # noqa: B023
            store.set(f"{case} begun", "")
        if (case, RANK) in (("after", 1), ("two groups", 0)):
            until(lambda: bool(found[case]))  # noqa: B023
        elif RANK == 1:
            store.wait([f"{case} begun"])
        if is_alone:
            act()
        with tracehook.symmetric([older, group] if case == "two groups" else group):
            mine = torch.full((1024,), float(RANK + 1), device=device)
    dist.all_reduce(mine, group=group)
    found[case].append(mine.sum().item())
    assert tracehook.is_symmetric(mine, group)
tell(found=found)
dist.destroy_process_group()
