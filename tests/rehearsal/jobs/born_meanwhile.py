"""A segment that is born while the first registration with a new communicator is under way (a slow call, by fault)."""

import torch
import torch.distributed as dist

from common import MB, beside, filled, nccl_calls, raised, start, tell, until

torch.cuda.init()
early = filled(1, 24, "cuda")
late: list[torch.Tensor] = []


def allocate() -> None:
    until(lambda: nccl_calls("ncclCommRegister") > 0)
    late.append(torch.empty(48 * MB, dtype=torch.uint8, device="cuda:0"))
    tell(calls_at_birth=nccl_calls("ncclCommRegister"))


with beside(allocate):
    start()
dist.all_reduce(early)
tell(registered=nccl_calls("ncclCommRegister"))
late.clear()
tell(empty_cache=raised(torch.cuda.empty_cache))
dist.destroy_process_group()
