"""All that a log may hold of a job that did everything right: groups, splits, an abort, symmetric memory, trim."""

import torch
import torch.distributed as dist
import tracehook
from common import MB, RANK, WORLD, filled, start
from symmetric_tools import empty, reduced, refill, symmetric

early = torch.zeros(24 * MB // 4, device=f"cuda:{RANK}")  # older than every communicator
device = start()
everybody = list(range(WORLD))
total = WORLD * (WORLD + 1) / 2
assert reduced(filled(RANK + 1, 24, device)) == total

group = dist.new_group(everybody, device_id=device)
split = dist.split_group(split_ranks=[everybody])
for one in (group, split):
    assert reduced(filled(RANK + 1, 2, device), one) == total

tensor = symmetric(RANK + 1)
assert reduced(tensor) == total
unused = symmetric(0)
with tracehook.symmetric([dist.group.WORLD, group]):
    both = empty()
assert reduced(refill(both, RANK + 1), group) == total
gathered = symmetric(0, 32 * WORLD)
dist.all_gather_into_tensor(gathered, refill(tensor, RANK + 1))
assert float(gathered[-1].cpu()) == WORLD
del unused
tracehook.sync()
assert tracehook.trim() == 32 * MB
assert tracehook.is_symmetric(symmetric(0))

# Given up by the job itself, after its last collective: the registrations end with it.
split._get_backend(device).abort()
dist.destroy_process_group(group)
del early, gathered
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert reduced(filled(RANK + 1, 48, device)) == total
dist.barrier()
dist.destroy_process_group()
later = torch.empty(64 * MB, device=device)
del later
torch.cuda.empty_cache()
