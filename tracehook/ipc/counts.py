"""What one rank of a group called, counted in the ring as calls into NCCL are: so that who waits for whom can be told.

A count costs no event. On a side stream, tracehook asks CUDA first whether a graph captures the stream.
"""

from __future__ import annotations

from tracehook._core import ipc as native
from tracehook.log.calls import READ, SIGNAL, WAIT


class CallCounts:
    """Of one rank in one group, until :meth:`end`. Any thread: the GIL orders them."""

    def __init__(self, key: int, rank: int, size: int) -> None:
        self._native = native.PeerCalls(key, rank, size)
        self._size = size

    def signalled(self, peer: int, channel: int, stream: int, captured: bool) -> None:
        """Count a signal to this peer, which its stream may have to wait with. `captured`: a graph has it."""
        self._native.count(SIGNAL, self._place(peer, channel), True, stream, captured)

    def waited(self, peer: int, channel: int, stream: int, captured: bool) -> None:
        """Count a wait for this peer."""
        self._native.count(WAIT, self._place(peer, channel), False, stream, captured)

    def read(self, peer: int) -> None:
        """Count a read of this peer's memory that sends it no signal."""
        self._native.count(READ, peer, False)

    def end(self) -> None:
        """Count no more: the group is closed."""
        self._native.end()

    def _place(self, peer: int, channel: int) -> int:
        return peer + self._size * (channel + 1)
