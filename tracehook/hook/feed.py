"""``tracehook.subscribe``: births and deaths of segments, for code that keeps something by an address."""

from __future__ import annotations

from typing import NamedTuple

from tracehook.hook.service import service
from tracehook.log import tables

_WHAT = ("", "born", "mapped", "unmapped", "gone")  # by number, as registrar/feed_abi.h has them


class SegmentChange(NamedTuple):
    """One change of one segment of the caching allocator.

    `what`: ``born``; ``unmapped`` if a library (a sleep mode) takes its memory away; ``mapped`` with a new `id` if it
    has other memory there; ``gone``. `id` is never used again in this process, an address is. `memory` says who can
    map it (``cudaMalloc``, ``shareable``, ``private``, ``pausable``, ``unknown``).
    """

    what: str
    id: int
    device: int
    address: int
    bytes: int
    memory: str


class Subscription:
    """What :func:`tracehook.subscribe` returns. Any thread may ask it."""

    def __init__(self) -> None:
        self._native = service().required().Subscription()

    def changes(self) -> list[SegmentChange]:
        """Return what has changed since the last call, in order. The first call begins with what was there before."""
        return [
            SegmentChange(_WHAT[what], number, device, address, size, tables.MEMORIES[memory])
            for what, number, device, address, size, memory in self._native.take()
        ]

    def close(self) -> None:
        """Hear no more. A second call does nothing."""
        self._native.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def subscribe() -> Subscription:
    """Follow the segments of the caching allocator: what came, what went, and what has other memory now.

    Some libraries keep things by address: a registration with a network card, or a handle of another process. Such an
    entry is wrong as soon as another segment has that address. Ask :meth:`Subscription.changes` before each use of an
    entry. Do not use one whose segment is ``gone`` or ``unmapped``.

    It tells of torch's segments, those of ``MemPool`` included; not of expandable segments, and not of memory that
    torch does not know. It keeps what happened until you ask: 48 bytes a change.

    Code that must hear of a death before the memory goes listens in C (``tracehook_subscribe`` of
    ``tracehook/cpp/registrar/feed_abi.h``, exported by the file ``tracehook._core.__file__``).

    Raises:
        RuntimeError: tracehook is off in this process.

    """
    return Subscription()
