"""Many ranks on one machine: a subgroup of every second rank, a few all-reduces over it and over all.

tracehook rehearse --devices 64 --warm --log logs -- torchrun --standalone --nproc-per-node 64 examples/many_ranks.py
"""

import os

import torch
import torch.distributed as dist

MB = 1 << 20


def memory_mb() -> float:
    """Return this process's share of the memory that it uses (PSS)."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(range(0, ranks, 2))

    tensor = torch.full((MB // 4,), float(rank)).to(device)
    for _ in range(3):
        total = tensor.clone()
        dist.all_reduce(total)
        assert total[0].item() == sum(range(ranks))
        if rank % 2 == 0:
            part = tensor.clone()
            dist.all_reduce(part, group=even)
            assert part[0].item() == sum(range(0, ranks, 2))

    # Kernels do nothing on emulated devices, so what is shared is made on the CPU.
    shares = torch.tensor([memory_mb()]).to(device)
    all_shares = torch.empty(ranks, device=device)
    dist.all_gather_into_tensor(all_shares, shares)
    if rank == 0:
        found = all_shares.cpu()
        print(f"{ranks} ranks, MiB of memory (PSS) of each: mean {found.mean():.0f}, most {found.max():.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
