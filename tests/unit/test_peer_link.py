"""A link between two processes: whole messages, descriptors beside them, and its end."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from tracehook.errors import PeerLost
from tracehook.ipc import wire
from tracehook.ipc.link import Link, close_files
from tracehook.ipc.wire import Kind


@pytest.fixture
def ends():
    """Two ends of one connection, that of rank 0 and that of rank 1."""
    made = [
        Link(sock, peer)
        for sock, peer in zip(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), (1, 0), strict=True)
    ]
    yield made
    for link in made:
        link.close()


def test_messages_stay_whole_and_in_order(ends):
    """Each send is one receive on the other side; between them there is nothing."""
    zero, one = ends
    assert one.receive() is None
    zero.send(b"first")
    zero.send(b"second" * 1000)
    assert [one.receive().data, one.receive().data, one.receive()] == [b"first", b"second" * 1000, None]


def test_descriptors_travel_beside_a_message(ends):
    """The receiver gets descriptors of its own, which its children do not inherit."""
    zero, one = ends
    reader, writer = os.pipe()
    zero.send(b"a pipe", [writer])
    os.close(writer)
    (received,) = one.receive().files
    assert not os.get_inheritable(received)
    os.write(received, b"x")
    close_files([received])
    assert os.read(reader, 9) == b"x"
    assert os.read(reader, 9) == b"", "nobody has the other end any more"
    os.close(reader)


def test_the_end_of_the_peer_is_seen_after_its_last_message(ends):
    """What it said is read first; then receive() and send() raise, again and again."""
    zero, one = ends
    zero.send(b"last words")
    zero.close()
    assert one.receive().data == b"last words"
    for _ in range(2):
        with pytest.raises(PeerLost, match="the process of rank 0 has ended") as caught:
            one.receive()
        assert caught.value.peer == 0
    with pytest.raises(PeerLost):
        one.send(b"too late")


def test_words_of_a_peer_that_did_not_read(ends):
    """A peer that ends with messages unread resets the connection; what it said before is read all the same."""
    zero, one = ends
    one.send(b"unread")
    zero.send(wire.pack_head(Kind.BYE))
    zero.close()
    one.hang_up()
    assert one.said_bye
    assert one.receive().data == wire.pack_head(Kind.BYE)
    with pytest.raises(PeerLost):
        one.receive()


def test_two_ranks_that_both_have_much_to_say(ends):
    """Each side's system buffer is full before the other reads: neither waits for the other."""
    zero, one = ends
    part = b"x" * 10000

    def talk(link):
        for _ in range(200):
            link.send(part, timeout=20)

    threads = {link: threading.Thread(target=talk, args=(link,)) for link in ends}
    for thread in threads.values():
        thread.start()
    got = {zero: 0, one: 0}
    deadline = time.monotonic() + 20
    while min(got.values()) < 200 and time.monotonic() < deadline:
        for link, thread in threads.items():
            # As a rank does: it reads only when it has said all.
            if not thread.is_alive() and link.receive() is not None:
                got[link] += 1
        time.sleep(0)
    assert got == {zero: 200, one: 200}


def test_a_peer_that_reads_nothing(ends):
    """It is given up at the deadline, with the reason."""
    zero, _ = ends

    def talk():
        while True:
            zero.send(b"x" * 10000, timeout=0.1)

    with pytest.raises(PeerLost, match=r"rank 1 has read nothing for 0\.1 s"):
        talk()


def test_the_native_message_is_that_of_the_wire(ends):
    """Saying "the same as last time" is the same whether Python sends it or the native side, and is taken by both."""
    zero, one = ends
    assert zero.send_same(7)
    assert one.receive().data == wire.pack_head(Kind.SAME, 7)
    one.send(wire.pack_head(Kind.SAME, 2**40))
    assert zero.take_same(2**40)
    assert not zero.take_same(8)


@pytest.mark.parametrize("message", [wire.pack_head(Kind.SAME, 6), wire.pack_head(Kind.SAME, 7) + b"more", b"x"])
def test_other_messages_are_left(ends, message):
    """What is not the expected message stays for receive(), descriptors and all."""
    zero, one = ends
    reader, writer = os.pipe()
    zero.send(message, [reader])
    assert not one.take_same(7)
    found = one.receive()
    assert (found.data, len(found.files)) == (message, 1)
    close_files([*found.files, reader, writer])
