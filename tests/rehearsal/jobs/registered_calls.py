"""Calls that gain by registered memory, and calls that do not, in memory that other processes can map."""

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, filled, nccl_calls, start, tell

device = start()
small = filled(RANK + 1, 1, device)
dist.all_reduce(small)
gathered = torch.empty(WORLD * MB // 4, device=device)
dist.all_gather_into_tensor(gathered, small)  # too small to gain
tell(after_small=nccl_calls("ncclCommRegister"))

part = filled(RANK + 1, 16, device)
whole = torch.zeros(WORLD * 16 * MB // 4, device=device)
dist.all_gather_into_tensor(whole, part)
tell(gathered=whole.cpu()[:: 16 * MB // 4].tolist(), after_gather=nccl_calls("ncclCommRegister"))
own = whole[RANK * 16 * MB // 4 : (RANK + 1) * 16 * MB // 4]
own.copy_(filled(RANK + 7, 16, device))
dist.all_gather_into_tensor(whole, own)  # in place
tell(in_place=whole.cpu()[:: 16 * MB // 4].tolist())

block = filled(RANK + 1, 40, device)
got = torch.zeros_like(block)
after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
if WORLD > 1:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, block, after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    tell(sent=got.cpu()[[0, -1]].tolist())
tell(status=tracehook.status(), registration=tracehook.explain(whole).registration)
held = nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister")
del whole, own, block, got
torch.cuda.empty_cache()
tell(held=held, left=nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister"))
free, total = torch.cuda.mem_get_info()
tell(used=total - free)
dist.destroy_process_group()
tell(end="reached")
