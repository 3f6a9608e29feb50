"""A job in which one rank is killed, as by a kernel that has no memory left. The logs tell what happened.

The pictures of the report in README.md and docs/reading.md show this job. Without a GPU:

    tracehook rehearse --devices 8 --warm --log logs -- torchrun --standalone --nproc-per-node 8 examples/lost_rank.py
    tracehook audit logs
    tracehook report logs -o report.html
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist

import tracehook

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.3, help="that a step takes besides its calls")
    arguments = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tracehook.enable()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1], group_desc=f"tp_{first // 2}") for first in range(0, ranks, 2)]

    def block(mib: int) -> torch.Tensor:
        return torch.ones(mib * MIB // 4, device=device)

    parameters = [block(mib) for mib in (48, 32, 24)]
    for step in range(arguments.steps):
        gradients = [block(mib) for mib in ((24, 22, 20) if step > arguments.steps // 3 else (24, 22))]
        with tracehook.symmetric(pairs[rank // 2]):
            partial = block(16 if step < arguments.steps // 2 else 32)
        dist.all_reduce(partial, group=pairs[rank // 2])
        for gradient in gradients:
            dist.all_reduce(gradient)
        uneven = [block(32)] if rank == ranks - 3 and step % 4 == 0 else []  # this rank allocates more often
        torch.cuda.synchronize()
        time.sleep(arguments.seconds)
        del partial, gradients, gradient, uneven
        if step % 6 == 5 or rank == ranks - 3:
            torch.cuda.empty_cache()
        if rank == ranks - 2 and step == arguments.steps * 4 // 5:
            os.kill(os.getpid(), signal.SIGKILL)
    del parameters
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
