"""Tensor parallelism with symmetric memory: the output of a row-parallel layer is reduced in an NCCL window.

SYMM_REGISTER_HOOK=1 torchrun --nproc-per-node 4 examples/symmetric_tp.py
tracehook rehearse --devices 4 -- torchrun --nproc-per-node 4 examples/symmetric_tp.py      # without a GPU
"""

import os

import torch
import torch.distributed as dist

import tracehook

TOKENS, HIDDEN, LAYERS = 1024, 4096, 8


def layer(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One row-parallel layer: every rank has a part of the columns, the sum over the ranks is the result."""
    with tracehook.symmetric(operation="all_reduce"):
        out = torch.empty(tokens.shape[0], weight.shape[1], dtype=tokens.dtype, device=tokens.device)
    torch.mm(tokens, weight, out=out)
    dist.all_reduce(out)
    return out


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tracehook.enable()
    ranks = dist.get_world_size()
    tokens = torch.ones(TOKENS, HIDDEN // ranks, dtype=torch.bfloat16).to(device)
    weight = torch.full((HIDDEN // ranks, HIDDEN), 1 / HIDDEN, dtype=torch.bfloat16).to(device)
    for _ in range(LAYERS):
        out = layer(tokens, weight)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        windows = tracehook.status()["windows"][0]
        print(f"{LAYERS} layers, {windows['windows']} window of {windows['bytes'] >> 20} MiB")
        print(f"the output:  {tracehook.explain(out).text}")
        print(f"the weights: {tracehook.explain(weight).text}")
    dist.barrier()
    del out
    given_back = tracehook.trim()
    if dist.get_rank() == 0:
        print(f"given back at the end: {given_back >> 20} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
