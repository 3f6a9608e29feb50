"""What it costs to reach a peer's memory, beside NCCL's send and recv and PyTorch's own sharing of CUDA tensors.

``torchrun --standalone --nproc-per-node 2 benchmarks/peer_memory.py`` on GPUs; in a rehearsal (``tracehook rehearse
--devices 2 --`` before it) only the exchanges mean something. All ways in turn, in one run; the ranks meet before each.
*link*: a copy between the two devices by one process.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import stats
import torch
import torch.distributed as dist
import torch.multiprocessing

import tracehook
from tracehook.ipc import PeerGroup

SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 30]  # bytes
SMALL = 8 << 10  # bytes, of the latency
TURNS = 100  # there and back, in one measurement of a latency


def meet() -> None:
    """Let both ranks come here. On the CPU: a barrier of NCCL would use the device."""
    dist.all_reduce(torch.zeros(1))


def connection(rank: int) -> Connection:
    """Return a pipe to the other rank, for torch's way."""
    name = f"\0tracehook-benchmark-{os.environ['MASTER_PORT']}"
    if rank == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        meet()
        return Connection(listener.accept()[0].detach())
    meet()
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(name)
    return Connection(ours.detach())


def timed(act: Callable[[], Any], rounds: int = 1) -> float:
    """Return microseconds of one round, with both ranks there."""
    meet()
    begin = time.perf_counter_ns()
    for _ in range(rounds):
        act()
    return (time.perf_counter_ns() - begin) / rounds / 1e3


def on_device(act: Callable[[], Any], rounds: int) -> float:
    """Return microseconds of one round, by events on the current stream."""
    torch.cuda.synchronize()
    meet()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(rounds):
        act()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / rounds * 1e3


class Bench:
    """Both ranks run the same."""

    def __init__(self, repetitions: int) -> None:
        self.rank = dist.get_rank()
        self.peer = 1 - self.rank
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.group = PeerGroup()
        self.pipe = connection(self.rank)
        self.repetitions = repetitions
        self.found = stats.Results(list)

    def exchange_by_torch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Share a tensor as torch.multiprocessing does."""
        self.pipe.send_bytes(bytes(ForkingPickler.dumps(tensor)))
        return ForkingPickler.loads(self.pipe.recv_bytes())

    def exchanges(self) -> None:
        """First and later exchanges."""
        kept: list[Any] = []
        for _ in range(self.repetitions):
            for name, exchange in (
                ("first", lambda tensor: self.group.exchange({self.peer: tensor})[self.peer].tensor),
                ("first_torch", self.exchange_by_torch),
            ):
                tensor = torch.empty(24 << 20, dtype=torch.uint8, device=self.device)
                torch.cuda.synchronize()
                self.found[name].append(timed(lambda: kept.extend((tensor, exchange(tensor)))))  # noqa: B023
        tensor = kept[0]
        self.group.exchange({self.peer: tensor})
        for _ in range(self.repetitions):
            self.found["again"].append(timed(lambda: self.group.exchange({self.peer: tensor}), 500))
            self.found["again_torch"].append(timed(lambda: self.exchange_by_torch(tensor), 20))

    def copies(self, most: int) -> None:
        """Copies of many sizes: rank 0 puts and gets, or sends, while rank 1 waits or receives."""
        mine = torch.zeros(most, dtype=torch.uint8, device=self.device)
        local = torch.zeros(most, dtype=torch.uint8, device=self.device)
        other = torch.zeros(most, dtype=torch.uint8, device="cuda:1") if self.rank == 0 else None
        there = self.group.exchange({self.peer: mine}, writable=True)[self.peer].tensor
        for size in [size for size in SIZES if size <= most]:
            rounds = 50 if size < 1 << 23 else 10
            here, far = local[:size], there[:size]
            for _ in range(self.repetitions):
                for name, act in (("put", lambda: far.copy_(here)), ("get", lambda: here.copy_(far))):  # noqa: B023
                    self.found[f"{name} {size}"].append(on_device(act if self.rank == 0 else lambda: None, rounds))
                act = (lambda: dist.send(here, 1)) if self.rank == 0 else (lambda: dist.recv(here, 0))  # noqa: B023
                self.found[f"nccl {size}"].append(on_device(act, rounds))
                act = (lambda: other[:size].copy_(here)) if other is not None else (lambda: None)  # noqa: B023
                self.found[f"link {size}"].append(on_device(act, rounds))

    def latency(self) -> None:
        """A small message there and back, eager: half of it is the way of one."""
        mine = torch.zeros(SMALL, dtype=torch.uint8, device=self.device)
        source = torch.zeros(SMALL, dtype=torch.uint8, device=self.device)
        there = self.group.exchange({self.peer: mine}, writable=True)[self.peer].tensor

        def by_peers() -> None:
            for turn in (0, 1):
                if turn == self.rank:
                    there.copy_(source)
                    self.group.signal(self.peer)
                else:
                    self.group.wait(self.peer)

        def by_nccl() -> None:
            for turn in (0, 1):
                dist.send(source, self.peer) if turn == self.rank else dist.recv(source, self.peer)

        for name, act in (("small", by_peers), ("small_nccl", by_nccl)):
            on_device(act, TURNS)
            for _ in range(self.repetitions):
                self.found[name].append(on_device(act, TURNS) / 2)


LINES = [
    stats.Line("first", "first exchange of a segment: tracehook", "us"),
    stats.Line("first_torch", "  torch.multiprocessing", "us"),
    stats.Line("again", "the same tensor again: tracehook", "us"),
    stats.Line("again_torch", "  torch.multiprocessing", "us"),
    stats.Line("small", "8 KiB put and signal, one way", "us"),
    stats.Line("small_nccl", "  NCCL send and recv", "us"),
]


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="bytes of the largest copy")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    tracehook.enable()
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    bench = Bench(arguments.repeat)
    bench.exchanges()
    bench.copies(arguments.most)
    bench.latency()
    if bench.rank == 0:
        stats.show(LINES, bench.found)
        for size in [size for size in SIZES if size <= arguments.most]:
            rates = {
                way: [size / us / 1e3 for us in bench.found[f"{way} {size}"]] for way in ("put", "get", "nccl", "link")
            }
            for way, values in rates.items():
                print(stats.describe(f"{size >> 10} KiB {way}", values, "GB/s"))
            for other in ("nccl", "link"):
                ratio = [put / rate for put, rate in zip(rates["put"], rates[other], strict=True)]
                print(stats.describe(f"{size >> 10} KiB put / {other}", ratio, ""), flush=True)
    meet()
    bench.group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
