"""FSDP2 and DDP on CPUs, where kernels compute: the losses with and without the drop-ins, to the last bit."""

import os
import sys

import torch
import torch.distributed as dist
import tracehook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from common import RANK, WORLD, tell
from llama import Llama

STEPS = 4
kind = sys.argv[1]

dist.init_process_group("gloo", store=dist.FileStore(os.environ["TEST_STORE"], WORLD), rank=RANK, world_size=WORLD)
mesh = init_device_mesh("cpu", (WORLD,))


def made(dropped_in: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model = Llama(layers=2, dim=32)
    if kind == "ddp":
        trained = DistributedDataParallel(model)
        if dropped_in:
            tracehook.ddp.apply(trained)
        return trained
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no averages
    if dropped_in:
        tracehook.fsdp.apply(model)
    return model


def losses(model: torch.nn.Module) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(512, (2, 8), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item().hex())
    return found


tell(plain=losses(made(dropped_in=False)), dropped_in=losses(made(dropped_in=True)))
dist.destroy_process_group()
