"""Events about peers, written into the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracehook import _core
from tracehook.log.records import OF_POOL

if TYPE_CHECKING:
    from tracehook.ipc.counts import CallCounts


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
