"""What peers send to one rank of a group, read and acted on. Belongs to the thread that holds the group's lock."""

from __future__ import annotations

import torch

from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.ipc import wire
from tracehook.ipc.imports import ImportedLoan
from tracehook.ipc.peer import Peer, Result, Said
from tracehook.ipc.semaphores import Semaphores
from tracehook.ipc.tables import EXPORTS, IMPORTS
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.wire import Kind, Reached


class Inbox:
    """Of one rank in one group."""

    def __init__(self, about: str, device: torch.device) -> None:
        self._about = about
        self._device = device
        self.semaphores: Semaphores | None = None
        self.words_of_peers: dict[int, tuple[ImportedLoan, int]] = {}  # see Semaphores
        self.is_closed = False  # nothing new is mapped any more

    def read(self, peer: Peer) -> None:
        """Read every message that is there, and act on it."""
        while (message := self._receive(peer)) is not None:
            self._act(peer, message)

    def take(self, peer: Peer, step: Reached) -> tuple[bool, Result]:
        """Read until the peer is so far in the last exchange, and no further: what it gives lasts until the next call.

        Returns:
            whether it is so far, and its part if that is the step.

        """
        while True:
            came, result = peer.take(step)
            message = None if came else self._receive(peer)
            if message is None:
                return came, result
            self._act(peer, message)

    @staticmethod
    def _receive(peer: Peer) -> bytes | None:
        try:
            return peer.link.receive()
        except PeerLost:
            peer.handle_loss()
            return None

    def _act(self, peer: Peer, message: bytes) -> None:
        try:
            head = wire.unpack_head(message)
            match head.kind:
                case Kind.EXCHANGE:
                    self._import_offers(peer, head, message)
                case Kind.CONFIRMED:
                    peer.said.append(Said(head.number, Reached(head.form), None))
                case Kind.REFUSED:
                    peer.partial, peer.problem = [], None
                    why = PeerError(message[wire.HEAD_BYTES :].decode(errors="replace"), advice="Mend that on its side")
                    why.told = why.text
                    peer.said.append(Said(head.number, Reached.GIVEN, why))
                case Kind.SEMAPHORES:
                    self._import_semaphores(peer, message)
                case Kind.BYE:
                    peer.link.peer_closed = True
                    IMPORTS.mark_unwanted(peer.link, peer.lost_error())
                case _:
                    self._act_on_memory(peer, head.kind, head.number)
        except wire.WireError as problem:
            text = f"{self._about}: rank {peer.rank} sent what cannot be read: {problem}"
            raise PeerError(text, advice="Install one version of tracehook on all ranks") from None

    def _act_on_memory(self, peer: Peer, kind: int, number: int) -> None:
        wanted = f"{self._about}: rank {peer.rank} wants this memory back"
        match kind:
            case Kind.RECALL:
                IMPORTS.on_recall(peer.link, number, PeerTensorGone(wanted))
            case Kind.UNMAP:
                IMPORTS.on_unmap_request(peer.link, number, PeerTensorGone(wanted))
            case Kind.RETURNED:
                EXPORTS.on_returned(peer.link, number)
            case Kind.UNMAPPED:
                EXPORTS.on_unmapped(peer.link, number)
            case Kind.NOT_MAPPED:
                peer.lacks_semaphores = True  # perhaps these were meant
                EXPORTS.on_not_mapped(peer.link, number)
            case _:
                raise wire.WireError(f"a message of kind {kind}")

    def _import_offers(self, peer: Peer, head: wire.Head, message: bytes) -> None:
        for offer in wire.unpack_offers(message, head.parts):
            try:
                loan = None
                if offer.nbytes and not self.is_closed:
                    loan = IMPORTS.map_loan(peer.link, peer.events, offer, self._device.index)
                peer.partial.append(PeerTensor(peer.rank, offer, loan, self._device, peer.events.calls))
            except PeerError as problem:
                peer.problem = problem
                peer.partial.append(PeerTensor(peer.rank, offer, None, self._device, peer.events.calls))
        if len(peer.partial) < head.total:
            return
        tensors, first_problem = peer.partial, peer.problem
        peer.partial, peer.problem = [], None
        given = tensors[0] if head.form == wire.Form.ONE else tensors if head.form == wire.Form.LIST else None
        what = given if first_problem is None else first_problem
        peer.said.append(Said(head.number, Reached.GIVEN, what, head.ranks))

    def _import_semaphores(self, peer: Peer, message: bytes) -> None:
        (offer,) = wire.unpack_offers(message, 1)
        try:
            loan = IMPORTS.map_loan(peer.link, peer.events, offer, self._device.index)
        except PeerError as problem:
            peer.unusable = problem
            return
        self.words_of_peers[peer.rank] = (loan, offer.offset)
