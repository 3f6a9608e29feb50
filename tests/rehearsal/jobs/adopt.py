"""Groups and segments first, tracehook afterwards: enabled, disabled, enabled again."""

import torch
import torch.distributed as dist

from common import RANK, WORLD, filled, nccl_calls, start, tell

device = start()
tensors = [filled(RANK + 1, size, device) for size in (24, 48, 2)]
half = dist.new_group([RANK])
whole = dist.new_group(list(range(WORLD)))
dist.all_reduce(tensors[0])
dist.all_reduce(tensors[1], group=whole)
split = dist.split_group(split_ranks=[list(range(WORLD))])
dist.all_reduce(tensors[2], group=split)

import tracehook  # noqa: E402 - that is the point

status = tracehook.status
tell(before=status()["state"], calls_before=nccl_calls("ncclCommRegister"))
tracehook.enable()
tell(enabled=status(), live=torch.cuda.memory_stats()["segment.all.current"])
dist.all_reduce(tensors[0])
tensors.append(filled(1, 64, device))
tell(grown=status())
tracehook.disable()
tracehook.disable()
tell(disabled=status(), made=nccl_calls("ncclCommRegister"), undone=nccl_calls("ncclCommDeregister"))
tensors.append(filled(1, 96, device))
del tensors[0]
torch.cuda.empty_cache()
dist.all_reduce(tensors[0])
tell(while_off=status())
tracehook.enable()
tracehook.enable()
tell(again=status(), live_again=torch.cuda.memory_stats()["segment.all.current"])
tensors.clear()
torch.cuda.empty_cache()
dist.all_reduce(filled(1, 1, device))
dist.barrier()
dist.destroy_process_group()
tell(end=status())
