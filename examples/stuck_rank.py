"""A job that hangs: rank 1 waits for a batch that nobody gives it. examples/session.txt shows what tracehook says."""

import os
import queue

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)

batches: queue.Queue[float] = queue.Queue()
for number in range(2 if dist.get_rank() == 1 else 3):  # the mistake
    batches.put(float(number))
for step in range(3):
    loss = torch.full((1024,), batches.get(), device=device)
    dist.all_reduce(loss)
    value = loss[0].item()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {value}", flush=True)
dist.destroy_process_group()
