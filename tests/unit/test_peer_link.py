"""A link between two processes: whole messages, handles of memory beside them, and its end."""

import contextlib
import errno
import os
import socket
import threading
import time

import pytest

from tracehook.errors import PeerLost
from tracehook.ipc import wire
from tracehook.ipc.link import Link
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


def test_handles_are_no_messages_for_the_program(ends, monkeypatch):
    """Descriptors of memory are kept apart and closed, those beside any other message are closed at once."""
    zero, one = ends
    taken: list[object] = []
    monkeypatch.setattr("tracehook.ipc.handles.native.Allocations", lambda device: _Allocations(device, taken))
    zero.start(3)
    one.start(3)
    reader, writer = os.pipe()
    head = wire.pack_head(Kind.HANDLES, 5, wire.FIRST, 1, 1)
    for message in (b"a pipe", head, head):
        zero.send(message, [writer])
    zero.send(wire.pack_head(Kind.UNMAP, 7))
    os.close(writer)
    assert one.receive() == b"a pipe"
    assert one.receive() == wire.pack_head(Kind.UNMAP, 7)
    assert taken == [(3, "file", False)] * 2, "inherited by no child"
    assert os.read(reader, 9) == b"", "nobody has the other end any more"
    os.close(reader)


class _Allocations:
    """Notes what is imported."""

    def __init__(self, device, taken):
        self.device, self.taken = device, taken

    def add_file(self, file):
        self.taken.append((self.device, "file", os.get_inheritable(file)))

    def release(self):
        """Release them."""


@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.ENOBUFS])
def test_descriptors_for_which_there_is_no_room(ends, error):
    """The system lets a user have only so many on their way: the next ones go when the peer has read some."""
    zero, one = ends
    zero.sock = _Sparing(zero.sock, error, times=3)
    zero.send(wire.pack_head(Kind.UNMAP, 7))
    assert one.receive() == wire.pack_head(Kind.UNMAP, 7)
    zero.sock = _Sparing(zero.sock, error, times=10**9)
    with pytest.raises(PeerLost, match=r"rank 1 has read nothing for 0\.1 s"):
        zero.send(b"x", timeout=0.1)


class _Sparing:
    """A socket that refuses to send for a while."""

    def __init__(self, sock, error, times):
        self._sock, self._error, self._left = sock, error, times

    def send(self, data):
        if self._left:
            self._left -= 1
            raise OSError(self._error, os.strerror(self._error))
        return self._sock.send(data)

    def __getattr__(self, name):
        return getattr(self._sock, name)


def test_the_end_of_the_peer_is_seen_after_its_last_message(ends):
    """What it said is read first; then receive() and send() raise, again and again."""
    zero, one = ends
    zero.send(b"last words")
    zero.close()
    assert one.receive() == b"last words"
    for _ in range(2):
        with pytest.raises(PeerLost, match="the process of rank 0 has ended") as caught:
            one.receive()
        assert caught.value.peer == 0
    with pytest.raises(PeerLost):
        one.send(b"too late")


@pytest.mark.parametrize("send", [Link.send, Link.try_send])
def test_who_sends_to_a_peer_that_has_ended_still_hears_its_last_words(ends, send):
    """A peer that closed its group in order is not lost, also if this rank sends before it reads."""
    zero, one = ends
    zero.send(b"last words")
    zero.send(wire.pack_head(Kind.BYE))
    zero.close()
    with contextlib.suppress(PeerLost):
        send(one, b"too late")
    assert one.ended is not None
    assert one.peer_closed
    assert [one.receive(), one.receive()] == [b"last words", wire.pack_head(Kind.BYE)]
    with pytest.raises(PeerLost):
        one.receive()


def test_words_of_a_peer_that_did_not_read(ends):
    """A peer that ends with messages unread resets the connection; what it said before is read all the same."""
    zero, one = ends
    one.send(b"unread")
    zero.send(wire.pack_head(Kind.BYE))
    zero.close()
    one.read_to_end()
    assert one.peer_closed
    assert one.receive() == wire.pack_head(Kind.BYE)
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


def test_who_must_not_wait_leaves_a_message_for_later(ends):
    """A peer that reads nothing holds nobody up, and hears all in order when it reads again; one that ended nothing."""
    zero, one = ends
    messages = [b"%05d" % number + b"x" * 10000 for number in range(200)]
    begin = time.monotonic()
    for message in messages:
        zero.try_send(message)
    assert time.monotonic() - begin < 5
    assert (zero.has_unsent, zero.ended) == (True, None), "the peer lives, and may still have memory of this rank"
    read: list[bytes] = []
    while len(read) < 200:
        assert zero.receive() is None, "which sends what there is room for"
        while (message := one.receive()) is not None:
            read.append(message)
    assert read == messages
    assert not zero.has_unsent
    one.close()
    zero.try_send(b"x")
    zero.try_send(b"x")
    assert not zero.has_unsent


def test_what_was_left_for_later_comes_first(ends):
    """Whatever is sent afterwards goes behind it."""
    zero, one = ends
    count = 0
    while not zero.has_unsent:
        zero.try_send(b"x" * 10000)
        count += 1
    sender = threading.Thread(target=zero.send, args=(wire.pack_head(Kind.UNMAP, 3),))
    sender.start()
    for _ in range(count):
        while (message := one.receive()) is None:
            time.sleep(0.001)
        assert message == b"x" * 10000
    sender.join(20)
    assert one.receive() == wire.pack_head(Kind.UNMAP, 3)
