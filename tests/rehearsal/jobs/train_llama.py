"""A tiny Llama trained on emulated ranks (ddp, fsdp or tp), and the same one on the host: their losses."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from common import RANK, WORLD, start, tell
from llama import Llama

STEPS, BATCH, LENGTH, VOCABULARY = 20, 8, 16, 64


def new_model() -> nn.Module:
    """Return the model with the same weights on each rank, on the host."""
    torch.manual_seed(7)
    return Llama(2, 32, vocabulary=VOCABULARY)


def train(model: nn.Module, device: torch.device, first: int, count: int) -> list[float]:
    """Train on `count` samples of each batch, from `first`; return the loss of each step."""
    # By itself torch takes all parameters together, and refuses some that are sharded beside some that are not.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    data = torch.Generator().manual_seed(11)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=data)[first : first + count].to(device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if count < BATCH:
            dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
        losses.append(loss.item())
    return losses


def main(kind: str, compiles: bool) -> None:
    torch.set_num_threads(1)
    expected = train(new_model(), torch.device("cpu"), 0, BATCH)
    device = start()
    model = new_model().to(device)
    first, count = (0, BATCH) if kind == "tp" else (RANK * BATCH // WORLD, BATCH // WORLD)
    if compiles:
        model.compile()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        mesh = init_device_mesh("cuda", (WORLD,))
        for block in model.blocks:
            plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
    tell(losses=train(model, device, first, count), expected=expected)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "compile" in sys.argv)
