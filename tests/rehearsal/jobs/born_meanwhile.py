"""A segment that is born while the first registration with a new communicator is under way (a slow call, by fault)."""

import threading

import torch
import torch.distributed as dist

from common import MB, filled, nccl_calls, start, tell

torch.cuda.init()
early = filled(1, 24, "cuda")
late: list[torch.Tensor] = []


def allocate() -> None:
    while nccl_calls("ncclCommRegister") == 0:
        threading.Event().wait(0.001)
    late.append(torch.empty(48 * MB, dtype=torch.uint8, device="cuda:0"))
    tell(calls_at_birth=nccl_calls("ncclCommRegister"))


thread = threading.Thread(target=allocate)
thread.start()
start()
thread.join()
dist.all_reduce(early)
tell(registered=nccl_calls("ncclCommRegister"))
late.clear()
try:
    torch.cuda.empty_cache()
    tell(empty_cache="ok")
except RuntimeError as problem:
    tell(empty_cache=str(problem))
dist.destroy_process_group()
