"""Each rank calls, and stands still for a while; which devices it has a context on."""

import sys
import time

import torch
import torch.distributed as dist

from common import WORLD, start, tell

device = start()
dist.all_reduce(torch.ones(4, device=device))
torch.cuda.synchronize()
time.sleep(float(sys.argv[1]))
tell(contexts=[torch._C._cuda_hasPrimaryContext(each) for each in range(WORLD)])
dist.destroy_process_group()
