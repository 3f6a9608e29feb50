"""Train a small model with DistributedDataParallel. Unchanged on GPUs, in a rehearsal, with and without tracehook.

SYMM_REGISTER_HOOK=1 torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
tracehook rehearse --devices 2 --log logs -- torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Linear(4 * width, width),
        nn.LayerNorm(width),
        nn.Linear(width, 16),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    trained = DistributedDataParallel(model(arguments.width).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(arguments.steps):
        batch = torch.randn(64, arguments.width, generator=generator).to(device)
        labels = torch.randint(16, (64,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(trained(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
