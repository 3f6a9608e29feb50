"""A segment that is born and freed while a non-blocking communicator is still in progress."""

import torch
import torch.distributed as dist
import tracehook

from common import MB, beside, filled, nccl_calls, start, tell, until

torch.cuda.init()
early = filled(1, 24, "cuda:0")


def come_and_go() -> None:
    until(lambda: nccl_calls("ncclCommInitRankConfig") > 0)
    late = torch.empty(48 * MB, dtype=torch.uint8, device="cuda:0")
    del late
    torch.cuda.empty_cache()
    tell(ready=[row["ready"] for row in tracehook.status()["communicators"]])


with beside(come_and_go):
    start()
dist.all_reduce(early)
tell(held=[row["held"] for row in tracehook.status()["communicators"]])
dist.destroy_process_group()
