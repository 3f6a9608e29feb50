"""The pools of symmetric memory: torch's memory pools over our own segment functions. Imports torch."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import torch

from tracehook import _core, versions
from tracehook.log import clock
from tracehook.log.stderr import warn
from tracehook.symmetric_memory.scope import left_to_python

_FOR_SCOPES = 0.2  # seconds
FREES_BESIDE_POOLS = versions.frees_beside_pools(torch.__version__)


class PoolLimitError(torch.OutOfMemoryError):  # type: ignore[misc]  # torch is Any to mypy here
    """The pools of a device would pass ``SYMM_REGISTER_POOL_LIMIT``. The text has the bytes and the largest owners."""


class PoolPair(NamedTuple):
    """One pool on one device: for eager tensors, and for those of captured graphs, which must not serve others."""

    number: int
    eager: _core.Pool
    graph: _core.Pool


class OpenScope(NamedTuple):
    """A thread that is in a scope: for how long, and in how many scopes of one pool inside of each other."""

    group: str
    pool: str
    device: int
    thread: str
    depth: int
    seconds: float


class Pools:
    """All pools of this process, by name and device."""

    def __init__(self, owners: Sequence[str]) -> None:
        self._owners = owners  # names of the groups for which scopes are made, by number; it grows
        allocate, free = _core.segment_functions()
        self._allocator = torch._C._cuda_customAllocator(allocate, free)
        self._pairs: dict[tuple[str, int], PoolPair] = {}
        self._names: list[str] = [""]
        self._released: set[Any] = set()  # pools of captured graphs that are gone
        # For captured graphs, of pools that have ended. Graphs may live: so the next pool of the name has these.
        self._graphs: dict[tuple[str, int], _core.Pool] = {}
        self._lock = threading.Lock()
        self._told = False
        # torch calls it on the thread that has no memory, with none of its locks held.
        torch._C._cuda_attach_out_of_memory_observer(left_to_python(self._out_of_memory))

    def pair(self, name: str, device: int) -> PoolPair:
        """Return the pool called `name` on `device`; made at the first call."""
        with self._lock:
            found = self._pairs.get((name, device))
            if found is None:
                number = len(self._names)
                self._names.append(name)
                make = left_to_python(functools.partial(self._new, device))
                graph = self._graphs.pop((name, device), None) or _core.Pool(number, device, make)
                found = PoolPair(number, _core.Pool(number, device, make), graph)
                self._pairs[name, device] = found
            return found

    def name(self, number: int) -> str:
        """Return the name of pool `number`."""
        return self._names[number]

    def _new(self, device: int) -> Any:
        """Make a pool of torch, for the first scope of a thread that finds none free; return its id."""
        # torch makes it under the GIL and the allocator's lock: so wait for that lock first, without the GIL.
        _core.quiet(device)
        with torch.cuda.device(device):  # a pool belongs to the device that is current when it is made
            made = torch.cuda.MemPool(self._allocator)
        _core.keep_for_ever(made)
        return made.id

    def open_scopes(self) -> list[OpenScope]:
        """Return which threads are in scopes, the longest first."""
        threads = {thread.native_id: thread.name for thread in threading.enumerate()}
        threads[os.getpid()] = threading.main_thread().name  # whose native_id is the parent's after a fork
        pairs = list(self._pairs.items())  # no lock: a signal's handler may ask in the middle of anything
        found = [
            OpenScope(self._owners[owner], name, device, threads.get(thread, f"thread {thread}"), depth, seconds)
            for (name, device), pair in pairs
            for pool in (pair.eager, pair.graph)
            for owner, thread, depth, seconds in pool.open()
        ]
        return sorted(found, key=lambda scope: -scope.seconds)

    def _out_of_memory(self, device: int, *_: int) -> None:
        """Say once what the scopes of other threads have to do with it. Who is in a scope gets a note on the error."""
        beside = [scope for scope in self.open_scopes() if scope.device == device and not FREES_BESIDE_POOLS]
        if beside and not self._told and not _core.in_scope():
            self._told = True
            warn(
                f"device {device} has no memory left, and PyTorch does not give its cached memory back while a scope "
                f"is open ({_named(beside)}): put scopes around allocations, not around a step"
            )

    def graphs_are_gone(self) -> None:
        """Let the next :meth:`release_cache` include the memory of captured graphs. That of ended pools goes now."""
        with self._lock:
            self._released.update(pair.graph for pair in self._pairs.values())
            devices = {device for _, device in self._graphs}
            for graph in self._graphs.values():
                graph.replace_idle()
            self._graphs.clear()
        for device in devices:
            _core.drop_replaced_pools(device)

    def forget(self, names: Set[str]) -> set[int]:
        """Let the next scope begin anew with pools of these names. Return the devices where memory can be given up."""
        with self._lock:
            ended = [key for key in self._pairs if key[0] in names]
            for key in ended:
                pair = self._pairs[key]
                pair.eager.replace_idle()
                if pair.graph in self._released:
                    pair.graph.replace_idle()
                    self._released.remove(pair.graph)
                else:
                    self._graphs[key] = pair.graph
                del self._pairs[key]  # now: a signal's handler may raise at any line before
            return {device for _, device in ended}

    def release_cache(self, device: int, names: Set[str]) -> bool:
        """Make torch give back every segment of these pools of the device that holds no tensor.

        A live pool of torch keeps its free segments for ever. So each pool gets new ones of torch in their place; what
        the old ones held free goes to the bank, and the rest when its tensors are gone. What a thread is allocating
        from stays as it is.

        torch can give up a pool only while no pool of the device is begun and nothing is captured. Otherwise nothing
        is given up now: return False, and a later call does it.
        """
        with self._lock:
            for (name, where), pair in self._pairs.items():
                if where == device and name in names:
                    pair.eager.replace_idle()
                    if pair.graph in self._released:
                        pair.graph.replace_idle()
                        if not pair.graph.open():
                            self._released.remove(pair.graph)
        # The scopes of other threads end soon: ranks that give back alone would allocate elsewhere then.
        end = clock.monotonic() + _FOR_SCOPES
        while not self.give_up(device):
            if clock.monotonic() > end:
                return False
            clock.sleep(0.001)
        # What older pools of torch still held, whose tensors are gone by now.
        torch.cuda.empty_cache()
        return True

    def give_up(self, device: int) -> bool:
        """Have torch give back what no tensor uses of pools that were replaced. See :meth:`release_cache`."""
        if not _core.quiet(device):
            return False
        _core.empty_replaced_pools(device)
        return True


def explain_out_of_memory(error: BaseException, others: Sequence[OpenScope]) -> None:
    """Add to an OutOfMemoryError that has left a scope what the scope had to do with it."""
    if FREES_BESIDE_POOLS:
        return
    advice = "PyTorch has done so now: enter it again"
    if others:
        advice = f"end the scopes that are still open ({_named(others)})"
    about = "tracehook: a scope was open, and PyTorch does not give its cached memory back to the device while one is"
    notes = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(about)]  # that of an inner scope
    error.add_note(f"{about}: {advice}, and put scopes around allocations, not around a step")


def _named(scopes: Sequence[OpenScope]) -> str:
    return "; ".join(f"{scope.thread}, {scope.group}, for {scope.seconds:.1f} s" for scope in scopes[:3])
