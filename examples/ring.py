"""A ring all_gather between the GPUs of one host, put by put, with no collective library in between.

    tracehook rehearse --devices 4 -- torchrun --standalone --nproc-per-node 4 examples/ring.py

Each rank puts the piece that it got last into the next rank's memory. Semaphores order the puts on the streams; the
hosts run ahead. The same steps, captured once, are replayed as a graph.
"""

import os

import torch
import torch.distributed as dist

import tracehook
from tracehook.ipc import PeerGroup, PeerTensor

PIECE = 1 << 18  # elements


def all_gather(group: PeerGroup, pieces: torch.Tensor, there: PeerTensor) -> None:
    """Fill row r of `pieces` with rank r's; this rank's own is there. `there` is `pieces` of the next rank."""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    for step in range(group.size - 1):
        row = (group.rank - step) % group.size
        group.signal(left)  # this rank's next row may be written
        group.wait(right)  # that of the next rank may
        there.tensor[row].copy_(pieces[row])
        group.signal(right)  # it is
        group.wait(left)  # so is this rank's: the row that goes on in the next step


def main() -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tracehook.enable()
    with PeerGroup() as group:
        pieces = torch.full((group.size, PIECE), -1.0)
        pieces[rank] = rank
        pieces = pieces.to(device)
        left, right = (rank - 1) % group.size, (rank + 1) % group.size
        there = group.exchange({left: pieces, right: pieces}, writable=True)[right]
        assert isinstance(there, PeerTensor)
        all_gather(group, pieces, there)
        torch.cuda.synchronize()
        print(f"rank {rank}: rows {[row.unique().tolist() for row in pieces.cpu()]}", flush=True)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_gather(group, pieces, there)
        for value in (10.0, 20.0):
            torch.cuda.synchronize()
            dist.barrier()  # all have read the rows of the turn before
            pieces[rank].copy_(torch.full((PIECE,), value + rank))
            graph.replay()
            print(f"rank {rank}: replayed {[row.unique().tolist() for row in pieces.cpu()]}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
