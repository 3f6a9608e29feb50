"""A segment that is born and freed while a non-blocking communicator is still in progress."""

import threading

import torch
import torch.distributed as dist
import tracehook

from common import MB, filled, nccl_calls, start, tell

torch.cuda.init()
early = filled(1, 24, "cuda:0")


def come_and_go() -> None:
    while nccl_calls("ncclCommInitRankConfig") == 0:
        threading.Event().wait(0.001)
    late = torch.empty(48 * MB, dtype=torch.uint8, device="cuda:0")
    del late
    torch.cuda.empty_cache()
    tell(ready=[row["ready"] for row in tracehook.status()["communicators"]])


thread = threading.Thread(target=come_and_go)
thread.start()
start()
thread.join()
dist.all_reduce(early)
tell(held=[row["held"] for row in tracehook.status()["communicators"]])
dist.destroy_process_group()
