"""A segment of each pool of torch: its own pool, a MemPool, a graph's, and a MemPool with an allocator of its own.

Argument: a folder, for the library of that allocator.
"""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, filled, start, tell
from own_allocator import made_in

allocator = made_in(sys.argv[1], f"own{RANK}")

device = start()
tensors = [filled(RANK + 1, 24, device)]
dist.all_reduce(tensors[0])
pools = [torch.cuda.MemPool(), torch.cuda.MemPool(allocator.allocator())]
for pool, size in zip(pools, (26, 28), strict=True):
    with torch.cuda.use_mem_pool(pool):
        tensors.append(torch.empty(size * MB, dtype=torch.uint8, device=device))
graph, shared = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    tensors.append(torch.empty(30 * MB, dtype=torch.uint8, device=device))
with torch.cuda.graph(shared, pool=torch.cuda.graph_pool_handle()):
    tensors.append(torch.empty(32 * MB, dtype=torch.uint8, device=device))
second = dist.new_group()
dist.all_reduce(tensors[0], group=second)
told = [tracehook.explain(tensor, second).registration for tensor in tensors]
tell(left_out=tracehook.status()["left_out"], told=told)
dist.destroy_process_group()
