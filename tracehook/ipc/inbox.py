"""What peers say to one rank of a group, read and acted on. Belongs to the thread that holds the group's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.ipc import wire
from tracehook.ipc.exports import EXPORTS
from tracehook.ipc.imports import IMPORTS
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.wire import Kind

if TYPE_CHECKING:
    import torch

    from tracehook.ipc.peer import Peer, Result
    from tracehook.ipc.semaphores import Words


class Inbox:
    """Of one rank in one group."""

    def __init__(self, about: str, device: torch.device) -> None:
        self._about = about
        self._device = device
        self.words: Words | None = None
        self.is_closed = False  # nothing new is mapped any more

    def read(self, peer: Peer) -> None:
        """Take everything that is there."""
        while (message := self._receive(peer)) is not None:
            self._act(peer, message)

    def take(self, peer: Peer) -> tuple[bool, Result]:
        """Read up to the peer's part of the last exchange, and no further: what it gives lasts until the next call."""
        if peer.is_same_next():
            peer.enter_same_up_to(peer.number)
        while True:
            heard = peer.link.heard  # before the last look for a message: what was sent earlier is there
            came, result = peer.take()
            message = None if came else self._receive(peer)
            if message is not None:
                self._act(peer, message)
            elif came or heard < peer.number:
                return came, result
            else:
                peer.enter_same_up_to(heard)

    @staticmethod
    def _receive(peer: Peer) -> bytes | None:
        try:
            return peer.link.receive()
        except PeerLost:
            peer.lost()
            return None

    def _act(self, peer: Peer, message: bytes) -> None:
        try:
            head = wire.unpack_head(message)
            match head.kind:
                case Kind.EXCHANGE:
                    self._take_offers(peer, head, message)
                case Kind.SAME:
                    peer.enter(head.number, peer.same_outcome())
                case Kind.REFUSED:
                    text = message[wire.HEAD_BYTES :].decode(errors="replace")
                    peer.partial, peer.problem = [], None
                    peer.enter(head.number, PeerError(f"rank {peer.rank} gave up: {text}"))
                case Kind.WORDS:
                    self._take_words(peer, message)
                case Kind.BYE:
                    peer.link.said_bye = True
                    IMPORTS.forget(peer.link, peer.end())
                case _:
                    self._hear_of_memory(peer, head.kind, head.number)
        except wire.WireError as problem:
            raise PeerError(f"{self._about}: rank {peer.rank} sent what cannot be read: {problem}") from None

    def _hear_of_memory(self, peer: Peer, kind: int, number: int) -> None:
        wanted = f"{self._about}: rank {peer.rank} wants this memory back: exchange a tensor again"
        match kind:
            case Kind.RETIRE:
                IMPORTS.retire(peer.link, number, PeerTensorGone(wanted))
            case Kind.CLOSE:
                IMPORTS.close(peer.link, number, PeerTensorGone(wanted))
            case Kind.RETURNED:
                EXPORTS.returned(peer.link, number)
            case Kind.CLOSED:
                EXPORTS.closed(peer.link, number)
            case Kind.UNOPENED:
                EXPORTS.unopened(peer.link, number)
                peer.given = None
            case _:
                raise wire.WireError(f"a message of kind {kind}")

    def _take_offers(self, peer: Peer, head: wire.Head, message: bytes) -> None:
        if not peer.partial:
            peer.enter_same_up_to(head.number - 1)
        for offer in wire.unpack_offers(message, head.parts):
            try:
                borrowed = None
                if offer.nbytes and not self.is_closed:
                    borrowed = IMPORTS.borrow(peer.link, peer.journal, offer, self._device.index)
                peer.partial.append(PeerTensor(peer.rank, offer, borrowed, self._device))
            except PeerError as problem:
                peer.problem = problem
                peer.partial.append(PeerTensor(peer.rank, offer, None, self._device))
        if len(peer.partial) < head.total:
            return
        tensors, first_problem = peer.partial, peer.problem
        peer.partial, peer.problem = [], None
        peer.can_repeat = first_problem is None
        peer.result = tensors[0] if head.form == wire.Form.ONE else tensors if head.form == wire.Form.LIST else None
        peer.enter(head.number, peer.result if first_problem is None else first_problem)

    def _take_words(self, peer: Peer, message: bytes) -> None:
        (offer,) = wire.unpack_offers(message, 1)
        try:
            borrowed = IMPORTS.borrow(peer.link, peer.journal, offer, self._device.index)
        except PeerError as problem:
            raise PeerError(f"{self._about}: {problem}") from None
        if self.words is not None:
            self.words.meet(peer.rank, borrowed, offer.offset)
