"""A graph with an all_gather in memory that sleeps between two of its launches.

Arguments: the library of sleeper.cpp, its handle types, and ``dropped``: the graph goes before the memory sleeps.
"""

import ctypes
import sys

import torch
import torch.distributed as dist

from common import MB, RANK, WORLD, start, tell

device = start()
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # the sleeper is not linked to it
sleeper = ctypes.CDLL(sys.argv[1])
sleeper.set_handle_types(int(sys.argv[2]))
allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "sleeper_malloc", "sleeper_free")
pool = torch.cuda.MemPool(allocator.allocator())
with torch.cuda.use_mem_pool(pool):
    shard = torch.full((4 * MB,), float(RANK + 1)).to(device)
    gathered = torch.empty(4 * MB * WORLD, device=device)
dist.all_gather_into_tensor(gathered, shard)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_gather_into_tensor(gathered, shard)
graph.replay()
torch.cuda.synchronize()
if "dropped" in sys.argv:
    graph.reset()
sleeper.fall_asleep()
sleeper.wake_up()
shard.copy_(torch.full((4 * MB,), float(RANK + 1)))
dist.barrier()
if "dropped" not in sys.argv:
    graph.replay()
tell(gathered=[gathered[0].item(), gathered[-1].item()])
del graph
shard = gathered = pool = None  # torch's own hook would miss the communicator
torch.cuda.empty_cache()
dist.destroy_process_group()
