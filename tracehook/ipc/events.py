"""Events about peers, written into the ring."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracehook._core import ipc as native


class PeerEvents(NamedTuple):
    """Writes events of one rank of one group. `comm` is the key of the group."""

    comm: int
    rank: int

    def write(self, event: str, peer: int, **fields: Any) -> None:
        """Write an event about a peer; the fields are those of the native `log`."""
        native.log(event, self.comm, self.rank, peer, **fields)
