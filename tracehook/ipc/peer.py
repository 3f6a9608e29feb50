"""What a group knows of one of its peers: the link, both sides' last exchange, and its end."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc import wire
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.link import Link
from tracehook.ipc.tables import EXPORTS, IMPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tracehook.ipc.exports import Loan
    from tracehook.ipc.tensor import PeerTensor

    Shareable: TypeAlias = Tensor | Sequence[Tensor] | None
    Result: TypeAlias = PeerTensor | list[PeerTensor] | None


class TensorIdentity:
    """A tensor as it was when it was last offered, without keeping it."""

    __slots__ = ("_loan", "_pointer", "_shape", "_strides", "_tensor")

    def __init__(self, tensor: Any, loan: Loan | None) -> None:
        self._tensor: Any = weakref.ref(tensor)
        self._pointer = tensor.data_ptr()
        self._shape = tensor.shape
        self._strides = tensor.stride()
        self._loan = loan

    def matches(self, tensor: Any) -> bool:
        """Whether the peer can use what it has for `tensor`."""
        return (
            self._tensor() is tensor
            and tensor.data_ptr() == self._pointer
            and tensor.shape == self._shape
            and tensor.stride() == self._strides
            and not (self._loan is not None and self._loan.is_recalled)
        )


class Peer:
    """One peer of one group. Belongs to the thread that holds the group's lock, but for :meth:`handle_loss`."""

    def __init__(self, link: Link, about: str, events: PeerEvents) -> None:
        self.link = link
        self.rank = link.peer
        self.about = about
        self.events = events
        self.number = 0  # of this rank's last exchange over this link; both sides count alike
        self._recorded = 0  # up to which exchange the peer's parts were put into `received`, or taken at once
        self._taken = 0  # the peer's part of which exchange was taken last
        self.form = wire.Form.NOTHING
        self.last_sent: list[TensorIdentity] | None = None  # None: the next exchange cannot refer to the last
        self.writable = False
        self.result: Result = None  # of the peer's last exchange
        self.can_repeat = False  # whether `result` is all of it
        self.received: deque[tuple[int, Result | PeerError]] = deque()  # of the peer's exchanges, not yet taken
        self.partial: list[PeerTensor] = []
        self.problem: PeerError | None = None
        self._end_lock = threading.Lock()  # the monitor and a call may both find the end
        self._is_loss_handled = False

    def repeats(self, given: Any, writable: bool) -> bool:
        """Whether this exchange gives the peer what the last one gave it."""
        last = self.last_sent
        if last is None or writable is not self.writable:
            return False
        if self.form == wire.Form.ONE:
            return last[0].matches(given)
        if self.form == wire.Form.NOTHING:
            return given is None
        return (
            isinstance(given, list | tuple)
            and len(given) == len(last)
            and all(one.matches(tensor) for one, tensor in zip(last, given, strict=True))
        )

    def take(self) -> tuple[bool, Result]:
        """Return whether the peer's part of the last exchange has arrived, and what it is.

        What is left of exchanges that this rank gave up is dropped. Raises what made the peer's part unusable.
        """
        while self.received:
            number, outcome = self.received.popleft()
            if number >= self.number:
                self._taken = self.number
                if isinstance(outcome, PeerError):
                    raise outcome.within(self.about)
                return True, outcome
        return False, None

    def receive_same(self) -> bool:
        """Whether the peer repeats its part of the last exchange within some microseconds."""
        is_up_to_date = self.can_repeat and self._taken == self.number - 1 and not self.received
        if is_up_to_date and self.link.receive_same(self.number):
            self._taken = self._recorded = self.number
            return True
        return False

    @property
    def has_sent_same(self) -> bool:
        """Whether it repeated its part without a message: in this exchange or, if this rank gave some up, later."""
        return self.link.last_same >= self.number

    def is_same_next(self) -> bool:
        """Whether that is what comes next, whatever messages are unread: then they are of no exchange before this."""
        return not self.received and self._taken == self.number - 1 and self.link.last_same == self.number

    def record(self, number: int, outcome: Result | PeerError) -> None:
        """Keep the peer's part of an exchange until it is taken. A second message about one is dropped."""
        if number > self._recorded:
            self.record_same_up_to(number - 1)
            self._recorded = number
            self.received.append((number, outcome))

    def record_same_up_to(self, number: int) -> None:
        """Record what was repeated without messages, before a message changes what "the same" is."""
        for each in range(self._recorded + 1, number + 1):
            self.received.append((each, self.same_outcome()))
        self._recorded = max(self._recorded, number)

    def same_outcome(self) -> Result | PeerError:
        """Return what "the same as last time" stands for."""
        if self.can_repeat:
            return self.result
        text = f"rank {self.rank} refers to tensors that this rank could not map"
        return PeerError(text, advice="Look at the error of the exchange before, which says why")

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
                    self.events.write("peer.lost", self.rank, value=self.link.life)
                EXPORTS.drop_link(self.link)
                IMPORTS.mark_unwanted(self.link, self.lost_error())
        return self.lost_error()
