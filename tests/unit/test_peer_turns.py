"""Whose part of which exchange is taken when: packets and numbers on a page keep one order, whoever is late."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import torch

from tracehook.errors import PeerError
from tracehook.ipc import outbox, wire
from tracehook.ipc.inbox import Inbox
from tracehook.ipc.link import Link
from tracehook.ipc.peer import Peer
from tracehook.ipc.wire import Form, Kind, Offer


class Sides:
    """Rank 1, which speaks, and what rank 0 knows of it."""

    def __init__(self):
        self.there, here = map(Link, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), (0, 1))
        self.peer = Peer(here, "peers of group 0", SimpleNamespace(write=lambda *_, **__: None))
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

    def says_same(self, *numbers):
        """Let rank 1 say that it gives the same as before."""
        for number in numbers:
            assert self.there.send_same(number)

    def takes(self, number):
        """Return which tensor rank 0 takes in an exchange; None if nothing has come."""
        self.peer.number = number
        if self.peer.receive_same():
            return self.peer.result.shape[0]
        came, result = self.inbox.take_result(self.peer)
        return result.shape[0] if came else None


@pytest.fixture
def sides():
    """Two ranks that have exchanged twice, by packets, and twice without."""
    made = Sides()
    made.gives(1, 1)
    assert made.takes(1) == 1
    for number in (2, 3, 4):
        made.says_same(number)
        assert made.takes(number) == 1
    yield made
    made.there.close()
    made.peer.link.close()


def test_what_replaces_it_is_read_before_it_is_taken(sides):
    """The peer said "the same", then gave another tensor, which is read first: both have their turn."""
    sides.says_same(5)
    sides.gives(6, 9)
    sides.inbox.read(sides.peer)  # as a poll, a release or every so many exchanges do
    assert [sides.takes(number) for number in (5, 6, 7)] == [1, 9, None]
    sides.says_same(7)
    assert sides.takes(7) == 9


def test_an_exchange_that_was_given_up(sides):
    """This rank did not take exchange 5 in time; the peer's word for 6 stands before what it gave in 7."""
    assert sides.takes(5) is None
    sides.says_same(5, 6)
    sides.gives(7, 9)
    assert [sides.takes(number) for number in (6, 7)] == [1, 9]


def test_a_peer_that_came_too_early(sides):
    """The peer gave up two exchanges and is at the third: a late rank takes them one after the other."""
    sides.says_same(5, 6, 7)
    assert [sides.takes(number) for number in (5, 6, 7, 8)] == [1, 1, 1, None]
    sides.gives(8, 9)
    assert sides.takes(8) == 9


def test_a_wake_is_no_second_word(sides):
    """Who sleeps is woken by a packet that says the same as the page; it counts once."""
    sides.peer.link.set_sleeping(True)
    sides.says_same(5)
    sides.peer.link.set_sleeping(False)
    assert sides.takes(5) == 1
    sides.says_same(6)
    assert sides.takes(6) == 1
    assert sides.takes(7) is None
    sides.gives(7, 9)
    assert sides.takes(7) == 9


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

    monkeypatch.setattr(outbox.EXPORTS, "send", fails)
    mine = SimpleNamespace(link=sides.there, number=4, last_sent=None, about="peers of group 0", rank=0)
    outgoing = SimpleNamespace(form=Form.LIST, offers=[offer] * (wire.OFFERS_OF_A_MESSAGE + 1), loans=[None] * 65)
    with pytest.raises(PeerError, match="peers of group 0: a tensor cannot be shared with rank 0: the memory is gone"):
        outbox.send(mine, outgoing, 1.0)
    assert [calls[0], calls[1]] == [first[0], second[0]]
    with pytest.raises(PeerError, match="rank 1 gave up: the memory is gone"):
        sides.takes(5)
    sides.gives(6, 9)
    assert sides.takes(6) == 9


def test_a_page_that_was_lost_on_its_way():
    """Descriptors are dropped where a process may have no more: then both sides go on by packets."""
    there, here = map(Link, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), (0, 1))
    here.start(0)
    there.start(0)
    assert here.receive() is None
    assert there.sock.recvmsg(100)[0] == wire.pack_head(Kind.SHARED_PAGE), "read without its descriptor"
    for number in (1, 2, 3):
        assert here.send_same(number)
        assert there.receive() == wire.pack_head(Kind.SAME, number)
    assert there.last_same == 0
    there.close()
    here.close()


def test_a_process_without_room_for_a_page(monkeypatch):
    """It goes on by packets."""
    there, here = map(Link, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), (0, 1))

    def full(*_):
        raise RuntimeError("memory for a peer: Too many open files")

    monkeypatch.setattr("tracehook.ipc.link.native.SharedPage", full)
    here.start(0)
    assert (here.send_same(1), here.receive_same(1), here.last_same) == (False, False, 0)
    there.close()
    here.close()
