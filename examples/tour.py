"""A tour of everything that can happen to a communicator and a segment, in one job. `make demo` runs it.

Nothing here knows of tracehook: the hook is switched on by the environment. Run it on GPUs:

    SYMM_REGISTER_HOOK=1 SYMM_REGISTER_LOG=logs torchrun --standalone --nproc-per-node 4 examples/tour.py
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

MB = 1 << 20


def say(step: int, text: str) -> None:
    if dist.get_rank() == 0:
        print(f"[{step:2d}/10] {text}", flush=True)


def filled(value: float, size_mb: int, device: torch.device) -> torch.Tensor:
    """A tensor made on the CPU and copied, so that its values are right on emulated devices too."""
    return torch.full((size_mb * MB // 4,), float(value)).to(device)


def check(name: str, tensor: torch.Tensor, expected: float) -> None:
    seen = tensor.cpu()
    if not bool((seen == expected).all()):
        raise SystemExit(f"{name}: expected {expected} everywhere, got {seen.unique().tolist()[:4]}")


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    early = torch.zeros(8 * MB, device=device)  # older than every communicator

    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, world + 1))

    say(1, "gradients: all_reduce in buckets, as DDP does")
    for bucket_mb in (4, 24, 1):
        bucket = filled(rank + 1, bucket_mb, device)
        dist.all_reduce(bucket)
        check("all_reduce", bucket, total)

    say(2, "parameters: all_gather and reduce_scatter, as FSDP does")
    gathered = torch.empty(world * MB, device=device)
    dist.all_gather_into_tensor(gathered, filled(rank + 1, 4, device))
    check("all_gather", gathered[(world - 1) * MB :], world)
    shard = torch.empty(MB, device=device)
    dist.reduce_scatter_tensor(shard, filled(rank + 1, 4 * world, device))
    check("reduce_scatter", shard, total)

    say(3, "a new_group of half the ranks")
    halves = [dist.new_group(list(range(start, start + world // 2))) for start in (0, world // 2)]
    mine = halves[rank * 2 // world]
    part = filled(1.0, 2, device)
    dist.all_reduce(part, group=mine)
    check("all_reduce in a half", part, world // 2)

    say(4, "a split: even and odd ranks")
    parities = dist.split_group(split_ranks=[list(range(0, world, 2)), list(range(1, world, 2))])
    part = filled(1.0, 2, device)
    dist.all_reduce(part, group=parities)
    check("all_reduce in a split", part, world // 2)

    say(5, "point to point around the ring")
    outgoing, incoming = filled(rank, 2, device), torch.empty(MB // 2, device=device)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, (rank + 1) % world),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
        ]
    )
    for request in requests:
        request.wait()
    check("ring", incoming, (rank - 1) % world)
    # Without a batch, each pair of ranks gets a communicator of its own, made by the first call.
    if rank % 2 == 0:
        dist.send(outgoing, rank + 1)
    else:
        dist.recv(incoming, rank - 1)
        check("pair", incoming, rank - 1)

    say(6, "memory goes back to the driver: empty_cache, then allocation again")
    del gathered, shard, outgoing, incoming, bucket, part
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    again = filled(rank + 1, 24, device)
    dist.all_reduce(again)
    check("all_reduce after empty_cache", again, total)

    say(7, "a communicator that is younger than the segments")
    late = dist.new_group(list(range(world)))
    dist.all_reduce(again, group=late)
    check("all_reduce on the late group", again, total * world)

    say(8, "an abort of one group, then work on another")
    late._get_backend(device).abort()
    again = filled(1.0, 24, device)
    dist.all_reduce(again)
    check("all_reduce after the abort", again, world)

    say(9, "the end of all groups")
    dist.barrier()
    print_late = rank == 0
    dist.destroy_process_group()

    if print_late:
        print("[10/10] allocation and empty_cache after the end", flush=True)
    after = torch.empty(64 * MB, device=device)
    del after, again
    torch.cuda.empty_cache()
    early.add_(1)


if __name__ == "__main__":
    main()
