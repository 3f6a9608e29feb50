"""A child of a communicator takes part in a collective while another thread is in a call on the parent."""

import sys
import time

import torch
import torch.distributed as dist

from common import RANK, beside, filled, nccl_calls, start, tell, until

device = start()
tensor = filled(1, 4, device)
dist.all_reduce(tensor)
parent = dist.group.WORLD._get_backend(device)
child = parent
if sys.argv[1] == "shrink" and RANK == 0:
    child = parent.shrink([1], 0)
elif sys.argv[1] == "split":
    child = dist.split_group(split_ranks=[[0, 1]])._get_backend(device)


def slow() -> None:
    torch.cuda.set_device(device)
    parent.allgather([[torch.empty_like(tensor), torch.empty_like(tensor)]], [tensor])


if RANK == 0:
    before = nccl_calls("ncclAllGather")
    began = time.monotonic()
    with beside(slow):
        until(lambda: nccl_calls("ncclAllGather") > before)
        child.allreduce([tensor])
        tell(seconds=time.monotonic() - began)
else:
    slow()
    if child is not parent:
        child.allreduce([tensor])
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
