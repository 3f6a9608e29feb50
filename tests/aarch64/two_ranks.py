"""Two ranks reduce ordinary memory and memory of a scope. Without arguments this starts both."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

import tracehook

WORLD = 2
SUM = 3.0


def reduce_both(rank: int) -> None:
    """Take part as one rank."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ordinary = torch.full((1 << 20,), rank + 1.0, device=device)
    with tracehook.symmetric():
        symmetric = torch.full((1 << 20,), rank + 1.0, device=device)
    for tensor in (ordinary, symmetric):
        dist.all_reduce(tensor)
    assert (ordinary[0].item(), symmetric[0].item()) == (SUM, SUM)
    assert (tracehook.is_symmetric(ordinary), tracehook.is_symmetric(symmetric)) == (False, True)
    dist.destroy_process_group()


def main() -> int:
    """Start both ranks; return the larger of their exit statuses."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(WORLD)}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | place | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    if "RANK" in os.environ:
        reduce_both(int(os.environ["RANK"]))
    else:
        sys.exit(main())
