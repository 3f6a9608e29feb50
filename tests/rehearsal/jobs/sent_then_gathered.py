"""One tensor is sent first, and gathered into next; the order of the ranks' segments is the program's."""

import os

import torch
import torch.distributed as dist

from common import MB, RANK, WORLD, filled, nccl_calls, start, tell

device = start()
tell(graph_register=os.environ.get("NCCL_GRAPH_REGISTER"))
part = 16 * MB // 4
whole, got = (torch.zeros(WORLD * part, device=device) for _ in range(2))
whole.fill_(RANK + 1)
peer = 1 - RANK
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, whole, peer), dist.P2POp(dist.irecv, got, peer)]):
    work.wait()
tell(received=got.cpu()[::part].tolist())
own = got[RANK * part : (RANK + 1) * part]
own.copy_(filled(RANK + 7, 16, device))
dist.all_gather_into_tensor(got, own)  # in place, in the segment that a message used
tell(gathered=got.cpu()[::part].tolist())
del whole, got, own
torch.cuda.empty_cache()
tell(left=nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister"))
dist.destroy_process_group()
