"""Peers' events, into the ring."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracehook._core import ipc as native


class Journal(NamedTuple):
    """Who speaks: the key of the group, and this process's rank in it."""

    comm: int
    rank: int

    def note(self, event: str, peer: int, **fields: Any) -> None:
        """Log an event about a peer; the fields are those of the native `log`."""
        native.log(event, self.comm, self.rank, peer, **fields)
