"""The pools of symmetric memory: torch's memory pools over our own segment functions. Imports torch."""

from __future__ import annotations

import threading
from collections.abc import Set
from typing import Any, NamedTuple

import torch

from tracehook import _core


class PoolLimitError(torch.OutOfMemoryError):  # type: ignore[misc]  # torch is Any to mypy here
    """``SYMM_REGISTER_POOL_LIMIT`` would be passed. The text has the numbers and the largest owners."""


class PoolPair(NamedTuple):
    """One pool on one device: for eager tensors, and for those of captured graphs, which must not serve others."""

    number: int
    eager: Any  # _core.Pool
    graph: Any


class Pools:
    """All pools of this process, by name and device."""

    def __init__(self) -> None:
        allocate, free = _core.segment_functions()
        self._allocator = torch._C._cuda_customAllocator(allocate, free)
        self._pairs: dict[tuple[str, int], PoolPair] = {}
        # torch's objects: a pool lives as long as its object does.
        self._torch: dict[Any, Any] = {}
        self._names: list[str] = [""]
        self._released: set[Any] = set()  # pools of captured graphs that are gone
        self._lock = threading.Lock()

    def pair(self, name: str, device: int) -> PoolPair:
        """Return the pool called `name` on `device`; made at the first call."""
        with self._lock:
            found = self._pairs.get((name, device))
            if found is None:
                number = len(self._names)
                self._names.append(name)
                found = PoolPair(number, self._make(number, device), self._make(number, device))
                self._pairs[name, device] = found
            return found

    def name(self, number: int) -> str:
        """Return the name of pool `number`."""
        return self._names[number]

    def _make(self, number: int, device: int) -> Any:
        backing = self._new(device)
        pool = _core.Pool(number, device, list(backing.id))
        self._torch[pool] = backing
        return pool

    def _new(self, device: int) -> Any:
        with torch.cuda.device(device):  # a pool belongs to the device that is current when it is made
            return torch.cuda.MemPool(self._allocator)

    def graphs_are_gone(self) -> None:
        """Let the next :meth:`release_cache` include the memory of captured graphs."""
        with self._lock:
            self._released.update(pair.graph for pair in self._pairs.values())

    def release_cache(self, device: int, names: Set[str]) -> None:
        """Make torch give back every segment of these pools of the device that holds no tensor.

        A live pool of torch keeps its free segments for ever. So each pool gets a new one of torch in its place; what
        the old one held free goes to the bank at once, and the rest when its tensors are gone. A pool that a thread is
        allocating from stays as it is.
        """
        with self._lock:
            for (name, where), pair in self._pairs.items():
                if where == device and name in names:
                    self._replace(pair.eager, device)
                    if pair.graph in self._released:
                        self._released.remove(pair.graph)
                        self._replace(pair.graph, device)
        # What older pools of torch still held, whose tensors are gone by now.
        torch.cuda.empty_cache()

    def _replace(self, pool: Any, device: int) -> None:
        backing = self._new(device)
        if pool.replace(list(backing.id)):
            self._torch[pool] = backing
