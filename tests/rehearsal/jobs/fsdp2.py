"""FSDP2 with its buffers for communication in the pool of torch's own group, which registers that pool itself."""

import torch
import torch.distributed as dist
import tracehook
from torch import nn
from torch.distributed.fsdp import fully_shard

from common import RANK, nccl_calls, start, tell

STEPS = 3

device = start()
backend = dist.group.WORLD._get_backend(device)
tell(supported=backend.supports_tensor_alloc(device))
model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
for part in (*model, model):
    fully_shard(part).set_allocate_memory_from_process_group_for_comm(True)
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    model(torch.ones(4, 256).to(device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
staged = backend.allocate_tensor(1 << 20, dtype=torch.float32, device=device)
staged.copy_(torch.full(staged.shape, RANK + 1.0))
dist.all_reduce(staged)
tell(
    sum=float(staged[0].cpu()),
    staged=staged.data_ptr(),
    collectives=[nccl_calls("ncclAllGather"), nccl_calls("ncclReduceScatter")],
    registrations=nccl_calls("ncclCommRegister"),
    segments=tracehook.status()["segments"],
    known=[(row["rank"], row["size"], row["held"]) for row in tracehook.status()["communicators"]],
)
del staged
dist.destroy_process_group()
tell(left=tracehook.status()["communicators"])
