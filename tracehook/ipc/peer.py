"""What a group knows of one of its peers: the link, what it gave in exchanges, and its end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.link import Link
from tracehook.ipc.tables import EXPORTS, IMPORTS
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.wire import Reached

Shareable: TypeAlias = Tensor | Sequence[Tensor] | None
Result: TypeAlias = PeerTensor | list[PeerTensor] | None


class Said(NamedTuple):
    """What a peer said of one of its exchanges."""

    number: int
    step: Reached
    what: Result | PeerError  # its part, or why there is none
    ranks: int = 0  # of its call: see wire.all_of


class Peer:
    """One peer of one group. Belongs to the thread that holds the group's lock, but for :meth:`handle_loss`."""

    def __init__(self, link: Link, about: str, events: PeerEvents) -> None:
        self.link = link
        self.rank = link.peer
        self.about = about
        self.events = events
        self.number = 0  # of this rank's last exchange over this link; both sides count alike
        self.said: deque[Said] = deque()  # in its order, not yet taken
        self.ranks = 0  # of the call in which it gave the part that was taken last: see wire.all_of
        self.partial: list[PeerTensor] = []
        self.problem: PeerError | None = None  # with the exchange that is coming
        self.lacks_semaphores = True  # of this rank
        self.unusable: PeerError | None = None  # why its own semaphores are not here
        self._end_lock = threading.Lock()  # the monitor and a call may both find the end
        self._is_loss_handled = False

    def take(self, step: Reached) -> tuple[bool, Result]:
        """Return whether the peer is so far in the last exchange, and its part if that is what was asked for.

        What is left of exchanges that this rank gave up is dropped. Raises what made the peer's part unusable, and why
        the peer gave up.
        """
        while self.said:
            number, reached, what, ranks = self.said.popleft()
            if number < self.number:
                continue
            if isinstance(what, PeerError):
                raise what.within(self.about)
            if reached >= step:
                self.ranks = ranks or self.ranks
                return True, what
        return False, None

    def obstacle(self) -> PeerError | None:
        """Return why the next exchange cannot begin: the peer's semaphores cannot be used, or it gave that one up."""
        found, self.unusable = self.unusable, None
        if found is None:
            next_one = (one.what for one in self.said if one.number == self.number + 1)
            found = next((what for what in next_one if isinstance(what, PeerError)), None)
        return found.within(self.about) if found is not None else None

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
