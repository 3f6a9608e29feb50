"""Two ranks that send to each other before any collective: a communicator of the pair, made by the first send."""

import sys

import torch
import torch.distributed as dist

from common import MB, RANK, filled, nccl_calls, start, tell

device = start(bind=False)
backend = dist.group.WORLD._get_backend(device)
warm_up = filled(1, 2, device)
dist.all_reduce(warm_up)
if RANK == 0:
    dist.send(warm_up, 1)
else:
    dist.recv(warm_up, 0)
del warm_up
torch.cuda.empty_cache()

before = nccl_calls("ncclCommRegister")
if sys.argv[1] == "pool":
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(24 * MB, dtype=torch.uint8, device=device)
    backend.register_mem_pool(pool)
else:
    tensor = torch.empty(24 * MB, dtype=torch.uint8, device=device)
tell(registered=nccl_calls("ncclCommRegister") - before, made=nccl_calls("ncclCommInitRankConfig"))

payload = filled(7, 2, device)
if RANK == 0:
    dist.send(payload, 1)
else:
    dist.recv(payload, 0)
tell(payload=payload.cpu()[0].item())
if sys.argv[1] == "pool":
    backend.deregister_mem_pool(pool)
dist.barrier()
dist.destroy_process_group()
