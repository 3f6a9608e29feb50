"""The last rank never joins the second all_reduce: torch's watchdog times out and aborts."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=8))
tensor = torch.ones(1 << 20, device=device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if dist.get_rank() == dist.get_world_size() - 1:
    time.sleep(40)
    os._exit(0)
dist.all_reduce(tensor)
torch.cuda.synchronize()
