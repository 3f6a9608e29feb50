"""Events about peers, written into the ring, and the number that stands for this process in them and in messages."""

from __future__ import annotations

import os
import secrets
from typing import NamedTuple

from tracehook import _core
from tracehook.ipc.counts import CallCounts
from tracehook.log.records import OF_POOL


class PeerEvents(NamedTuple):
    """Writes events of one rank of one group. `comm` is the key of the group; `calls` has what the rank called."""

    comm: int
    rank: int
    calls: CallCounts | None = None

    def write(self, event: str, peer: int, **members: int) -> None:
        """Write an event about a peer, with the other members of its row (cpp/events/events.def)."""
        _core.push(event, comm=self.comm, comm_rank=self.rank, peer=peer, **members)


def number_of(segment: int, is_pool: bool) -> int:
    """Return the number of a segment as the ring keeps it."""
    return segment | OF_POOL if is_pool else segment


class _Life:
    number = 0


def _begin_life() -> None:
    _Life.number = secrets.randbits(63) | 1


def own_life() -> int:
    """Return a random number, the same at each call. A pid cannot stand for a process: the system uses it again."""
    return _Life.number


_begin_life()
os.register_at_fork(after_in_child=_begin_life)
