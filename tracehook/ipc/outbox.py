"""What one rank of a group sends to its peers in exchanges. Belongs to the thread that holds the group's lock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc import wire
from tracehook.ipc.exports import Prepared
from tracehook.ipc.peer import Peer, Shareable
from tracehook.ipc.tables import EXPORTS


class OutgoingExchange(NamedTuple):
    """What one peer is given in one exchange."""

    form: wire.Form
    loans: Sequence[Prepared | None]
    offers: Sequence[wire.Offer]


def pack(given: Shareable, device: int, writable: bool) -> OutgoingExchange:
    """Prepare what a peer is to be given. Raises :class:`PeerError` if something of it cannot be shared."""
    if given is None:
        return OutgoingExchange(wire.Form.NOTHING, (), ())
    is_list = isinstance(given, list | tuple)
    tensors: Any = given if is_list else (given,)
    both = [EXPORTS.prepare(tensor, device, writable) for tensor in tensors]
    form = wire.Form.LIST if is_list else wire.Form.ONE
    return OutgoingExchange(form, [loan for loan, _ in both], [offer for _, offer in both])


def send(peer: Peer, outgoing: OutgoingExchange, ranks: int, timeout: float) -> None:
    """Send it, as the peer's next exchange; `ranks`: see :func:`wire.all_of`. Raises PeerLost or PeerError."""
    peer.number += 1
    begin = 0
    try:
        for data, count in wire.exchange_messages(peer.number, outgoing.form, outgoing.offers, ranks):
            EXPORTS.send(peer.link, data, outgoing.loans[begin : begin + count], timeout)
            begin += count
    except PeerLost:
        raise peer.handle_loss() from None
    except PeerError as problem:
        raise problem.within(f"{peer.about}: a tensor cannot be shared with rank {peer.rank}") from None


def confirm(peer: Peer, step: wire.Reached) -> None:
    """Tell the peer how far this rank is in their exchange."""
    peer.link.try_send(wire.pack_head(wire.Kind.CONFIRMED, peer.number, step))


def refuse(peers: Collection[Peer], rank: int, problem: BaseException) -> None:
    """Tell all peers of a call that this rank gives their exchange up, and why: they need not wait, and raise alike.

    If it does so because a peer gave up, the others hear of that one.
    """
    lines = (problem.text if isinstance(problem, PeerError) else str(problem)).splitlines() or [type(problem).__name__]
    told = problem.told if isinstance(problem, PeerError) else ""
    for peer in peers:
        text = told or f"rank {rank} gave up: {lines[0].removeprefix(f'{peer.about}: ')}"
        peer.link.try_send(wire.pack_head(wire.Kind.REFUSED, peer.number) + text.encode()[:1000])


def send_semaphores(peer: Peer, words: Tensor, device: int, timeout: float) -> None:
    """Send where this rank's semaphores are. Raises :class:`PeerLost` or :class:`PeerError`."""
    loan, offer = EXPORTS.prepare(words, device, writable=True)
    data = wire.pack_head(wire.Kind.SEMAPHORES, count=1, total=1) + wire.pack_offer(offer)
    try:
        EXPORTS.send(peer.link, data, [loan], timeout)
    except PeerLost:
        raise peer.handle_loss() from None
    except PeerError as problem:
        raise problem.within(peer.about) from None
