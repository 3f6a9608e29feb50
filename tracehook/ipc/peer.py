"""What a group knows of one of its peers: the link, what it gave in exchanges, and its end."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.link import Link
from tracehook.ipc.tables import EXPORTS, IMPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tracehook.ipc.tensor import PeerTensor

    Shareable: TypeAlias = Tensor | Sequence[Tensor] | None
    Result: TypeAlias = PeerTensor | list[PeerTensor] | None


class Peer:
    """One peer of one group. Belongs to the thread that holds the group's lock, but for :meth:`handle_loss`."""

    def __init__(self, link: Link, about: str, events: PeerEvents) -> None:
        self.link = link
        self.rank = link.peer
        self.about = about
        self.events = events
        self.number = 0  # of this rank's last exchange over this link; both sides count alike
        self._recorded = 0  # up to which exchange the peer's parts were put into `received`
        self.received: deque[tuple[int, Result | PeerError]] = deque()  # of the peer's exchanges, not yet taken
        self.partial: list[PeerTensor] = []
        self.problem: PeerError | None = None
        self._end_lock = threading.Lock()  # the monitor and a call may both find the end
        self._is_loss_handled = False

    def take(self) -> tuple[bool, Result]:
        """Return whether the peer's part of the last exchange has arrived, and what it is.

        What is left of exchanges that this rank gave up is dropped. Raises what made the peer's part unusable.
        """
        while self.received:
            number, outcome = self.received.popleft()
            if number >= self.number:
                if isinstance(outcome, PeerError):
                    raise outcome.within(self.about)
                return True, outcome
        return False, None

    def record(self, number: int, outcome: Result | PeerError) -> None:
        """Keep the peer's part of an exchange until it is taken. A second message about one is dropped."""
        if number > self._recorded:
            self._recorded = number
            self.received.append((number, outcome))

    # --- its end ---

    @property
    def is_gone(self) -> bool:
        """Whether nothing more comes from it."""
        return self.link.peer_closed or self.link.ended is not None

    def lost_error(self) -> PeerLost:
        """Return the exception for its end."""
        what = f"rank {self.rank} has closed its PeerGroup" if self.link.peer_closed else self.link.ended
        return PeerLost(f"{self.about}: {what}", self.rank)

    def handle_loss(self) -> PeerLost:
        """Drop what it had and mark what was mapped of it, if its link has ended; return the exception. Any thread."""
        if self.link.ended is not None:
            with self._end_lock:
                is_first, self._is_loss_handled = not self._is_loss_handled, True
            if is_first:
                if not self.link.peer_closed:
                    self.events.write("peer.lost", self.rank, peer_life=self.link.life)
                EXPORTS.drop_link(self.link)
                IMPORTS.mark_unwanted(self.link, self.lost_error())
        return self.lost_error()
