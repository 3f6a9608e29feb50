"""A small program of two groups that uses all of tracehook once: scopes, local registrations, a graph, trim, an end."""

import gc
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from common import RANK, WORLD

import tracehook
from tracehook.hook.groups import all_gather_single
from tracehook.ipc import PeerGroup
from tracehook.ipc.tables import EXPORTS

MB = 1 << 18  # elements


class Program:
    """One turn of the program on this rank."""

    def __init__(self, store: Any, device: torch.device, patience: float) -> None:
        self.store = store
        self.device = device
        self.patience = timedelta(seconds=patience)
        self.wrong: list[str] = []
        self.at = ""
        self.other: Any = None  # a group that only sums ordinary memory

    def run(self, *names: str) -> None:
        """Take these steps."""
        for self.at in names:
            step: Callable[[], None] = getattr(self, self.at)
            step()
            torch.cuda.synchronize()

    def begin(self) -> None:
        """Make the groups."""
        dist.init_process_group(
            "nccl", store=self.store, rank=RANK, world_size=WORLD, timeout=self.patience, device_id=self.device
        )
        self.other = dist.new_group(timeout=self.patience)
        self.sum_in(self.other)

    def scope(self) -> None:
        """Sum tensors of a scope, in place and out of place."""
        with tracehook.symmetric():
            first, second = self._empty(2 * MB), self._empty(MB)
        self._sum(first)
        self._sum(second, MB // 2)

    def twice(self) -> None:
        """Make the second tensor only when the first one has been used."""
        for size in (MB, 3 * MB):
            with tracehook.symmetric():
                tensor = self._empty(size)
            self._sum(tensor)
        tracehook.sync()

    def local(self) -> None:
        """Gather and send in memory that each rank registers by itself."""
        whole, part = self._empty(8 * WORLD * MB), self._filled(RANK, 8 * MB)
        all_gather_single(whole, part, None)
        self._expect(whole, *range(WORLD))
        received = self._empty(8 * MB)
        after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, part, after), dist.P2POp(dist.irecv, received, before)]
        ):
            work.wait()
        self._expect(received, before)

    def graph(self) -> None:
        """Capture the sum of a tensor of a scope, and replay it."""
        stream, graph = torch.cuda.Stream(self.device), torch.cuda.CUDAGraph()
        source = self._empty(MB)
        with torch.cuda.stream(stream):
            with tracehook.symmetric(graph=True):
                warm = self._empty(MB)
            dist.all_reduce(warm)
            del warm
        try:
            with torch.cuda.graph(graph, stream=stream):
                with tracehook.symmetric():
                    total = self._empty(MB)
                total.copy_(source)
                dist.all_reduce(total)
            for turn in range(2):
                source.copy_(torch.full((MB,), float(RANK + turn)))
                graph.replay()
                torch.cuda.synchronize()
                self._expect(total, sum(rank + turn for rank in range(WORLD)))
        finally:
            graph.reset()

    def passing(self) -> None:
        """Make one more group, use it, and destroy it."""
        group = dist.new_group(timeout=self.patience)
        with tracehook.symmetric(group):
            tensor = self._empty(MB)
        self._sum(tensor, group=group)
        del tensor
        dist.destroy_process_group(group)

    def peers(self) -> None:
        """Copy what the other ranks have, in memory of torch and of a scope."""
        with tracehook.symmetric():
            pooled = self._empty(MB)
        mine = [self._filled(RANK, 8 * MB), pooled]
        pooled.copy_(torch.full((MB,), float(RANK)))
        torch.cuda.synchronize()
        others = [rank for rank in range(WORLD) if rank != RANK]
        with PeerGroup() as group:
            for writable in (False, True):
                theirs = group.exchange(dict.fromkeys(others, mine), writable)
                for rank in others:
                    group.signal(rank)
                for rank in others:
                    group.wait(rank)
                    shared = theirs[rank]
                    assert isinstance(shared, list)
                    for tensor in shared:
                        self._expect(tensor.get(), rank)
        del mine, pooled, theirs, shared, tensor
        deadline = time.monotonic() + self.patience.total_seconds()
        while EXPORTS.held()[0] and time.monotonic() < deadline:
            time.sleep(0.001)  # else the ranks' pools have other memory in the next scope

    def free(self) -> None:
        """Give back what nobody uses."""
        gc.collect()
        torch.cuda.synchronize()
        tracehook.release_graphs()
        tracehook.trim()
        torch.cuda.empty_cache()

    def end(self) -> None:
        """Destroy the groups."""
        dist.destroy_process_group()

    # --- values ---

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, device=self.device)

    def _filled(self, value: float, size: int) -> torch.Tensor:
        return torch.full((size,), float(value)).to(self.device)

    def _sum(self, tensor: torch.Tensor, size: int | None = None, group: Any = None) -> None:
        part = tensor[:size]
        part.copy_(torch.full(part.shape, float(RANK + 1)))
        dist.all_reduce(part, group=group)
        self._expect(part, WORLD * (WORLD + 1) / 2)

    def sum_in(self, group: Any) -> None:
        """Sum ordinary memory."""
        self._sum(self._empty(MB // 16), group=group)
        torch.cuda.synchronize()

    def _expect(self, tensor: torch.Tensor, *what: float) -> None:
        torch.cuda.synchronize()
        found = tensor.cpu().view(len(what), -1)
        if not bool((found == torch.tensor(what, dtype=torch.float32)[:, None]).all()):
            self.wrong.append(f"{self.at}: {found[:, 0].tolist()}, not {list(what)}")
