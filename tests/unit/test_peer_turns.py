"""Whose part of which exchange is taken when: packets keep one order, whoever is late."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tracehook.errors import PeerError
from tracehook.ipc import outbox, wire
from tracehook.ipc.inbox import Inbox
from tracehook.ipc.link import Link
from tracehook.ipc.peer import Peer
from tracehook.ipc.tables import EXPORTS
from tracehook.ipc.wire import Form, Kind, Offer, Reached


class Sides:
    """Rank 1, which speaks, and what rank 0 knows of it."""

    def __init__(self):
        self.there, here = map(Link, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), (0, 1))
        events: Any = SimpleNamespace(write=lambda *_, **__: None, calls=None)
        self.peer = Peer(here, "peers of group 0", events)
        self.inbox = Inbox("peers of group 0", torch.device("cpu"))
        for link in (self.there, here):
            link.start(0)
        for link in (self.there, here):
            assert link.receive() is None

    def gives(self, number, length):
        """Let rank 1 give a tensor of a shape that tells it from others."""
        offer = Offer(0, 0, 0, 0, 0, 0, 0, 7, 0, b"", (length, 0), (1, 1))
        ((data, _),) = wire.exchange_messages(number, Form.ONE, [offer])
        self.there.send(data)

    def takes(self, number):
        """Return which tensor rank 0 takes in an exchange; None if nothing has come."""
        self.peer.number = number
        came, result = self.inbox.take(self.peer, Reached.GIVEN)
        assert not isinstance(result, list)
        return result.shape[0] if came and result is not None else None


@pytest.fixture
def sides():
    """Two ranks that have exchanged four times."""
    made = Sides()
    for number in (1, 2, 3, 4):
        made.gives(number, 1)
        assert made.takes(number) == 1
    yield made
    made.there.close()
    made.peer.link.close()


def test_what_is_read_before_it_is_taken_has_its_turn(sides):
    """The peer gave twice, and a poll or a release read both."""
    sides.gives(5, 1)
    sides.gives(6, 9)
    sides.inbox.read(sides.peer)
    assert [sides.takes(number) for number in (5, 6, 7)] == [1, 9, None]


def test_an_exchange_that_was_given_up(sides):
    """This rank did not take exchange 5 in time; what the peer gave in it is dropped."""
    assert sides.takes(5) is None
    for number, length in ((5, 1), (6, 2), (7, 9)):
        sides.gives(number, length)
    assert [sides.takes(number) for number in (6, 7)] == [2, 9]


def test_a_peer_that_came_too_early(sides):
    """The peer gave up two exchanges and is at the third: a late rank takes them one after the other."""
    for number in (5, 6, 7):
        sides.gives(number, number)
    assert [sides.takes(number) for number in (5, 6, 7, 8)] == [5, 6, 7, None]
    sides.gives(8, 9)
    assert sides.takes(8) == 9


def test_a_peer_that_gave_up_in_the_middle(sides, monkeypatch):
    """Half of an exchange came, then the peer failed: the line is said in that exchange, and the next one is whole."""
    offer = Offer(0, 0, 0, 0, 0, 0, 0, 7, 0, b"", (5, 0), (1, 1))
    first, second = wire.exchange_messages(5, Form.LIST, [offer] * (wire.OFFERS_OF_A_MESSAGE + 1))
    calls = []

    def fails(link, data, _loans, _timeout):
        calls.append(data)
        if len(calls) > 1:
            raise PeerError("the memory is gone")
        link.send(data)

    monkeypatch.setattr(EXPORTS, "send", fails)
    mine: Any = SimpleNamespace(link=sides.there, number=4, about="peers of group 0", rank=0)
    outgoing: Any = SimpleNamespace(form=Form.LIST, offers=[offer] * (wire.OFFERS_OF_A_MESSAGE + 1), loans=[None] * 65)
    with pytest.raises(
        PeerError, match="peers of group 0: a tensor cannot be shared with rank 0: the memory is gone"
    ) as raised:
        outbox.send(mine, outgoing, 0, 1.0)
    outbox.refuse([mine], 1, raised.value)
    assert [calls[0], calls[1]] == [first[0], second[0]]
    with pytest.raises(PeerError, match="rank 1 gave up: a tensor cannot be shared with rank 0: the memory is gone"):
        sides.takes(5)
    sides.gives(6, 9)
    assert sides.takes(6) == 9


def confirms(sides, number, step):
    """Let rank 1 say how far it is."""
    sides.there.send(wire.pack_head(Kind.CONFIRMED, number, step))


def gives_up(sides, number, why):
    """Let rank 1 refuse an exchange."""
    mine: Any = SimpleNamespace(link=sides.there, number=number, about="peers of group 0", rank=0)
    outbox.refuse([mine], 1, why)


def test_what_all_have_counts_for_the_pair_too(sides):
    """Who waits for its pair goes on with either word; who waits for all passes over what the pair said."""
    sides.gives(5, 1)
    confirms(sides, 5, Reached.ALL)
    sides.takes(5)
    assert sides.inbox.take(sides.peer, Reached.PAIR)[0]
    sides.gives(6, 1)
    confirms(sides, 6, Reached.PAIR)
    sides.takes(6)
    assert not sides.inbox.take(sides.peer, Reached.ALL)[0]
    confirms(sides, 6, Reached.ALL)
    assert sides.inbox.take(sides.peer, Reached.ALL)[0]


def test_a_peer_that_gives_up_after_its_part(sides):
    """Both raise in this exchange, and a third rank hears who began; the next exchange is whole."""
    sides.gives(5, 1)
    gives_up(sides, 5, PeerError("peers of group 0: it cannot be mapped"))
    assert sides.takes(5) == 1
    with pytest.raises(PeerError, match="peers of group 0: rank 1 gave up: it cannot be mapped") as raised:
        sides.inbox.take(sides.peer, Reached.ALL)
    assert raised.value.told == "rank 1 gave up: it cannot be mapped"
    sides.gives(6, 9)
    assert sides.takes(6) == 9


def test_a_peer_that_gives_up_before_they_are_connected(sides):
    """Its refusals end the wait for a connection one after the other; one of an earlier exchange does not."""
    for number, why in ((5, "first"), (6, "second")):
        gives_up(sides, number, ValueError(why))
    sides.inbox.read(sides.peer)
    for number, why in ((4, "first"), (5, "second")):
        sides.peer.number = number
        assert sides.peer.obstacle().text == f"peers of group 0: rank 1 gave up: {why}"
    sides.peer.number = 6
    assert sides.peer.obstacle() is None
