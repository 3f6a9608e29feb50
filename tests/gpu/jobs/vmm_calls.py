"""Calls that gain by registered memory, eager and captured, in memory that other processes can map."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

MB = 1 << 20
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NEXT, PREVIOUS = (RANK + 1) % WORLD, (RANK - 1) % WORLD
SIZE = 32 * MB // 4  # elements

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
dist.barrier(device_ids=[device.index])
torch.cuda.synchronize()
before = torch.cuda.memory_reserved()  # of this process: other jobs may run on these devices


def say(text: str) -> None:
    """Print a line, whole: ranks print beside each other."""
    os.write(1, f"rank={RANK} {text}\n".encode())


def calls() -> None:
    """Gather from all ranks and send to the next one, eager and in a graph."""
    part, whole = torch.full((SIZE,), RANK + 1.0, device=device), torch.empty(WORLD * SIZE, device=device)
    got = torch.empty_like(part)

    def exchange() -> None:
        dist.all_gather_into_tensor(whole, part)
        swaps = [dist.P2POp(dist.isend, part, NEXT), dist.P2POp(dist.irecv, got, PREVIOUS)]
        for work in dist.batch_isend_irecv(swaps):
            work.wait()

    def shown() -> str:
        found = [*whole[::SIZE].tolist(), float(got[-1])]
        whole.zero_()
        got.zero_()
        return ",".join(str(int(value)) for value in found)

    exchange()
    say(f"eager={shown()}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exchange()
    for number in range(2):
        part.fill_(RANK + 10.0 * (number + 1))
        graph.replay()
        torch.cuda.synchronize()
        say(f"replay={shown()}")
    graph.reset()


calls()
torch.cuda.synchronize()
torch.cuda.empty_cache()
dist.barrier(device_ids=[device.index])
say(f"kept={torch.cuda.memory_reserved() - before}")
dist.destroy_process_group()
