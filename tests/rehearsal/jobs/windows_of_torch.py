"""Windows through PyTorch: a pool of NCCL's memory, or expandable segments, and the first argument says which."""

import sys

import torch
import torch.distributed as dist

from common import RANK, filled, nccl_calls, start, tell

device = start()
backend = dist.group.WORLD._get_backend(device)
dist.all_reduce(filled(1, 2, device))

if sys.argv[1] == "opposite":
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensors = {name: torch.empty(1 << 22, device=device) for name in ("AB" if RANK == 0 else "BA")}
    tensors["A"].copy_(torch.full((1 << 22,), float(RANK + 1)))
    tensors["B"].copy_(torch.full((1 << 22,), 100.0 * (RANK + 1)))
    backend.register_mem_pool(pool, symm=True)
    dist.all_reduce(tensors["A"])
    tell(first=tensors["A"][0].item(), windows=nccl_calls("ncclCommWindowRegister"))
    backend.deregister_mem_pool(pool)
    tell(undone=nccl_calls("ncclCommWindowDeregister"))
    dist.destroy_process_group()
else:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(RANK + 1, 48, device)
    try:
        backend.register_mem_pool(pool, symm=True)
    except dist.DistBackendError as problem:
        tell(refused=str(problem))
        dist.destroy_process_group()
        sys.exit()
    tell(windows=nccl_calls("ncclCommWindowRegister"))
    try:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        dist.all_reduce(tensor)
        tell(first=tensor[0].item())
        backend.deregister_mem_pool(pool)
        dist.destroy_process_group()
    except dist.DistBackendError as problem:
        tell(problem=str(problem))
