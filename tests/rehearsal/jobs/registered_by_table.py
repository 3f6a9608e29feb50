"""Two ranks that gather and send; how many registrations each call made. A tuning table may say which calls gain."""

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, filled, nccl_calls, start, tell

device = start()
made, told = {}, None
for size in (1, 2, 4):  # MiB of the output
    part, whole = filled(RANK + 1, size / 2, device), torch.zeros(size * MB // 4, device=device)
    before = nccl_calls("ncclCommRegister")
    dist.all_gather_into_tensor(whole, part)
    made[f"gathered {size}"] = nccl_calls("ncclCommRegister") - before
    made[f"values {size}"] = whole.cpu()[:: size * MB // 8].tolist()
    told = tracehook.explain(whole, dist.group.WORLD).registration
    del part, whole
    torch.cuda.empty_cache()
given = filled(RANK + 1, 40, device)
got = torch.zeros_like(given)
before = nccl_calls("ncclCommRegister")
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, given, 1 - RANK), dist.P2POp(dist.irecv, got, 1 - RANK)]):
    work.wait()
made["sent 40"] = nccl_calls("ncclCommRegister") - before
made["sent"] = got.cpu()[0].item() + RANK
tell(made=made, told=told)
dist.destroy_process_group()
