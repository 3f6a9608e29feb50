"""A cache of memory registrations that takes no false hit, for a transfer library such as NIXL.

Registering memory with a network card is slow, so programs cache what was registered by its address. PyTorch frees a
segment, the driver gives the address to another one, and the cache hands out a registration of memory that is gone.
Here the feed of tracehook drops what ended, before each use. `Agent` stands for the library's agent.

    SYMM_REGISTER_HOOK=1 python examples/cached_registrations.py
"""

from __future__ import annotations

import torch

import tracehook


class Agent:
    """What a transfer library offers for memory: (address, bytes, device) in, a handle out."""

    def __init__(self) -> None:
        self.registered: dict[int, tuple[int, int, int]] = {}
        self._made = 0

    def register_memory(self, address: int, size: int, device: int) -> int:
        """Register a range of GPU memory; return the handle."""
        self._made += 1
        self.registered[self._made] = (address, size, device)
        return self._made

    def deregister_memory(self, handle: int) -> None:
        """Undo that."""
        del self.registered[handle]


class Registrations:
    """The registrations of segments, each made at its first use."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._feed = tracehook.subscribe()
        self._segments: dict[int, tracehook.SegmentChange] = {}  # that have memory, by id
        self._handles: dict[int, int] = {}  # by the segment's id

    def of(self, tensor: torch.Tensor) -> int:
        """Return the handle of the segment in which a tensor lies."""
        for change in self._feed.changes():
            if change.what in ("born", "mapped"):
                self._segments[change.id] = change
            else:
                self._segments.pop(change.id, None)
                if (handle := self._handles.pop(change.id, None)) is not None:
                    self._agent.deregister_memory(handle)
        place = tensor.data_ptr()
        segment = next(one for one in self._segments.values() if one.address <= place < one.address + one.bytes)
        if segment.id not in self._handles:
            self._handles[segment.id] = self._agent.register_memory(segment.address, segment.bytes, segment.device)
        return self._handles[segment.id]


def main() -> None:
    """Use two tensors one after the other at one address."""
    agent = Agent()
    registrations = Registrations(agent)
    cache = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    address, first = cache.data_ptr(), registrations.of(cache)
    assert registrations.of(cache[1 << 20 :]) == first, "one registration serves the whole segment"
    del cache
    torch.cuda.empty_cache()
    cache = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    second = registrations.of(cache)
    print(f"the same address: {cache.data_ptr() == address}, the same handle: {second == first}")
    print(f"registered now: {len(agent.registered)}")


if __name__ == "__main__":
    main()
