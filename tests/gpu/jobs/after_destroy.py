"""Allocate and give back memory after the process group's end. Prints ``outcome=`` per rank."""

import os

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
dist.all_reduce(torch.ones(1 << 20, device=device))
torch.cuda.synchronize()
dist.destroy_process_group()
try:
    tensor = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    del tensor
    torch.cuda.empty_cache()
    print("outcome=fine", flush=True)
except Exception as problem:
    print(f"outcome={type(problem).__name__}", flush=True)
    os._exit(0)  # the allocator is in no state to end in an orderly way
