"""A segment of each pool of torch: its own pool, a MemPool, a graph's, and a MemPool with an allocator of its own.

Argument: a folder, for the library of that allocator.
"""

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, filled, start, tell

SOURCE = """
#include <stddef.h>
typedef void* stream;
extern "C" int cudaMalloc(void**, size_t);
extern "C" int cudaFree(void*);
extern "C" void* take(ptrdiff_t size, int, stream) { void* out = nullptr; cudaMalloc(&out, size); return out; }
extern "C" void give(void* pointer, ptrdiff_t, int, stream) { cudaFree(pointer); }
"""

library = Path(sys.argv[1], f"libown{RANK}.so")
library.with_suffix(".cpp").write_text(SOURCE)
subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(library.with_suffix(".cpp"))], check=True)
allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give")

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
tell(end="reached")
