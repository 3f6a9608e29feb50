"""What a group knows of one of its peers: the link, both sides' last exchange, and its end."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc import wire
from tracehook.ipc.exports import EXPORTS
from tracehook.ipc.imports import IMPORTS
from tracehook.ipc.journal import Journal
from tracehook.ipc.link import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tracehook.ipc.exports import Loan
    from tracehook.ipc.tensor import PeerTensor

    Givable: TypeAlias = Tensor | Sequence[Tensor] | None
    Result: TypeAlias = PeerTensor | list[PeerTensor] | None


class Given:
    """A tensor as it was when it was last offered, without keeping it."""

    __slots__ = ("_loan", "_pointer", "_shape", "_strides", "_tensor")

    def __init__(self, tensor: Any, loan: Loan | None) -> None:
        self._tensor: Any = weakref.ref(tensor)
        self._pointer = tensor.data_ptr()
        self._shape = tensor.shape
        self._strides = tensor.stride()
        self._loan = loan

    def is_same(self, tensor: Any) -> bool:
        """Whether the peer can use what it has for `tensor`."""
        return (
            self._tensor() is tensor
            and tensor.data_ptr() == self._pointer
            and tensor.shape == self._shape
            and tensor.stride() == self._strides
            and not (self._loan is not None and self._loan.retired)
        )


class Peer:
    """One peer of one group. Belongs to the thread that holds the group's lock, but for :meth:`lost`."""

    def __init__(self, link: Link, about: str, journal: Journal) -> None:
        self.link = link
        self.rank = link.peer
        self.about = about
        self.journal = journal
        self.number = 0  # of this rank's last exchange over this link; both sides count alike
        self._entered = 0  # up to which exchange the peer's parts were entered into `arrived`, or taken at once
        self._taken = 0  # the peer's part of which exchange was taken last
        self.form = wire.Form.NOTHING
        self.given: list[Given] | None = None  # None: the next exchange cannot refer to the last
        self.writable = False
        self.result: Result = None  # of the peer's last exchange
        self.can_repeat = False  # whether `result` is all of it
        self.arrived: deque[tuple[int, Result | PeerError]] = deque()  # of the peer's exchanges, not yet taken
        self.partial: list[PeerTensor] = []
        self.problem: PeerError | None = None
        self._ending = threading.Lock()  # the watcher and a call may both find the end
        self._is_dropped = False

    def repeats(self, given: Any, writable: bool) -> bool:
        """Whether this exchange gives the peer what the last one gave it."""
        last = self.given
        if last is None or writable is not self.writable:
            return False
        if self.form == wire.Form.ONE:
            return last[0].is_same(given)
        if self.form == wire.Form.NOTHING:
            return given is None
        return (
            isinstance(given, list | tuple)
            and len(given) == len(last)
            and all(one.is_same(tensor) for one, tensor in zip(last, given, strict=True))
        )

    def take(self) -> tuple[bool, Result]:
        """Return whether the peer's part of the last exchange has arrived, and what it is.

        What is left of exchanges that this rank gave up is dropped. Raises what made the peer's part unusable.
        """
        while self.arrived:
            number, outcome = self.arrived.popleft()
            if number >= self.number:
                self._taken = self.number
                if isinstance(outcome, PeerError):
                    raise PeerError(f"{self.about}: {outcome}")
                return True, outcome
        return False, None

    def hear_same(self) -> bool:
        """Whether the peer says within some microseconds that its part is the same as last time."""
        if self.can_repeat and self._taken == self.number - 1 and not self.arrived and self.link.hear_same(self.number):
            self._taken = self._entered = self.number
            return True
        return False

    @property
    def has_said_same(self) -> bool:
        """Whether it has said so without a message, for this exchange or, if this rank gave some up, a later one."""
        return self.link.heard >= self.number

    def is_same_next(self) -> bool:
        """Whether that is what comes next, whatever messages are unread: then they are of no exchange before this."""
        return not self.arrived and self._taken == self.number - 1 and self.link.heard == self.number

    def enter(self, number: int, outcome: Result | PeerError) -> None:
        """Keep the peer's part of an exchange until it is taken. A second word about one is dropped."""
        if number > self._entered:
            self.enter_same_up_to(number - 1)
            self._entered = number
            self.arrived.append((number, outcome))

    def enter_same_up_to(self, number: int) -> None:
        """Enter what was said without messages, before a message changes what "the same" is."""
        for each in range(self._entered + 1, number + 1):
            self.arrived.append((each, self.same_outcome()))
        self._entered = max(self._entered, number)

    def same_outcome(self) -> Result | PeerError:
        """Return what "the same as last time" stands for."""
        if self.can_repeat:
            return self.result
        return PeerError(f"rank {self.rank} refers to tensors that this rank could not map")

    # --- its end ---

    @property
    def is_gone(self) -> bool:
        """Whether nothing more comes from it."""
        return self.link.said_bye or self.link.ended is not None

    def end(self) -> PeerLost:
        """Return the exception for it."""
        what = f"rank {self.rank} has closed its PeerGroup" if self.link.said_bye else self.link.ended
        return PeerLost(f"{self.about}: {what}", self.rank)

    def lost(self) -> PeerLost:
        """Let go of what it had and of what was had of it, if its link has ended; return the exception. Any thread."""
        if self.link.ended is not None:
            with self._ending:
                is_first, self._is_dropped = not self._is_dropped, True
            if is_first:
                if not self.link.said_bye:
                    self.journal.note("peer.lost", self.rank, value=self.link.life)
                EXPORTS.forget(self.link)
                IMPORTS.forget(self.link, self.end())
        return self.end()
