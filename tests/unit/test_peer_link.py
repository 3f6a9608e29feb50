"""A link between two processes: whole messages, handles of memory beside them, and its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import threading
import time
from pathlib import Path

import pytest

from tracehook.errors import PeerLost
from tracehook.ipc import wire
from tracehook.ipc.link import Link
from tracehook.ipc.wire import Kind

PAGE_BYTES = 256


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
    assert [one.receive(), one.receive(), one.receive()] == [b"first", b"second" * 1000, None]


def test_handles_are_no_messages_for_the_program(ends, monkeypatch):
    """Descriptors of memory are kept apart and closed, those beside any other message are closed at once."""
    zero, one = ends
    taken = []
    monkeypatch.setattr("tracehook.ipc.handles.native.Allocations", lambda device: Allocations(device, taken))
    zero.start(3)
    one.start(3)
    assert one.receive() is None, "the other side's page is no message for the program"
    reader, writer = os.pipe()
    head = wire.pack_head(Kind.HANDLES, 5, wire.FIRST, 1, 1)
    for message in (b"a pipe", head, head):
        zero.send(message, [writer])
    assert zero.send_same(7)
    os.close(writer)
    assert one.receive() == b"a pipe"
    assert not one.receive_same(7), "handles were there instead"
    assert one.receive() == wire.pack_head(Kind.SAME, 7)
    assert taken == [(3, "file", False)] * 2, "inherited by no child"
    assert os.read(reader, 9) == b"", "nobody has the other end any more"
    os.close(reader)


class Allocations:
    """Notes what is imported."""

    def __init__(self, device, taken):
        self.device, self.taken = device, taken

    def add_file(self, file):
        """Import a descriptor, which stays the caller's."""
        self.taken.append((self.device, "file", os.get_inheritable(file)))

    def release(self):
        """Release them."""


@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.ENOBUFS])
def test_descriptors_for_which_there_is_no_room(ends, error):
    """The system lets a user have only so many on their way: the next ones go when the peer has read some."""
    zero, one = ends
    zero.sock = Sparing(zero.sock, error, times=3)
    zero.send(wire.pack_head(Kind.SAME, 7))
    assert one.receive() == wire.pack_head(Kind.SAME, 7)
    zero.sock = Sparing(zero.sock, error, times=10**9)
    with pytest.raises(PeerLost, match=r"rank 1 has read nothing for 0\.1 s"):
        zero.send(b"x", timeout=0.1)


class Sparing:
    """A socket that refuses to send for a while."""

    def __init__(self, sock, error, times):
        self._sock, self._error, self._left = sock, error, times

    def send(self, data):
        """Send it, or not yet."""
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
    """A peer that reads nothing holds nobody up; what it was told comes in order when it reads again."""
    zero, one = ends
    messages = [b"%05d" % number + b"x" * 10000 for number in range(200)]
    begin = time.monotonic()
    for message in messages:
        zero.try_send(message)
    assert time.monotonic() - begin < 5
    assert (zero.has_unsent, zero.ended) == (True, None), "the peer lives, and may still have memory of this rank"
    read = []
    while len(read) < 200:
        assert zero.receive() is None, "which sends what there is room for"
        while (message := one.receive()) is not None:
            read.append(message)
    assert read == messages
    assert not zero.has_unsent


def test_what_was_left_for_later_comes_first(ends):
    """Whatever is sent afterwards, a repeated exchange too, goes behind it."""
    zero, one = ends
    for link in ends:
        link.start(0)
    assert [zero.receive(), one.receive()] == [None, None]
    assert (zero.send_same(1), one.receive_same(1), zero.send_same(2), one.last_same) == (True, True, True, 2)
    count = 0
    while not zero.has_unsent:
        zero.try_send(b"x" * 10000)
        count += 1
    assert not zero.send_same(3)
    sender = threading.Thread(target=zero.send, args=(wire.pack_head(Kind.SAME, 3),))
    sender.start()
    for _ in range(count):
        while (message := one.receive()) is None:
            time.sleep(0.001)
        assert message == b"x" * 10000
    sender.join(20)
    assert (one.receive(), one.last_same) == (wire.pack_head(Kind.SAME, 3), 2)


def test_nothing_is_left_for_a_peer_that_has_ended(ends):
    """Its messages are dropped without a word."""
    zero, one = ends
    one.close()
    zero.try_send(b"x")
    zero.try_send(b"x")
    assert not zero.has_unsent


@pytest.fixture
def linked(ends):
    """Return the same ends, each of which knows the other, and has nothing to read."""
    for link in ends:
        link.start(0)
    for link in ends:
        assert link.receive() is None
    return ends


def test_the_native_message_is_that_of_the_wire(linked):
    """Python and the native side send the same bytes for "the same as last time", and each reads the other's."""
    zero, one = linked
    assert zero.send_same(7)
    assert one.receive() == wire.pack_head(Kind.SAME, 7)
    one.send(wire.pack_head(Kind.SAME, 2**40))
    assert zero.receive_same(2**40)
    assert not zero.receive_same(8)


@pytest.mark.parametrize("message", [wire.pack_head(Kind.SAME, 6), wire.pack_head(Kind.SAME, 7) + b"more", b"x"])
def test_other_messages_are_left(linked, message):
    """What is not the expected message stays for receive()."""
    zero, one = linked
    zero.send(message)
    assert not one.receive_same(7)
    assert one.receive() == message


def test_the_second_time_needs_no_message(linked):
    """The first one is a message; those after it are a number in memory, and neither side reads the socket."""
    zero, one = linked
    for number in range(1, 20):
        assert zero.send_same(number)
        assert one.receive_same(number)
        assert not one.receive_same(number + 1)
        assert one.last_same == (number if number > 1 else 0)
    assert one.receive() is None


def test_what_is_said_in_both_ways_keeps_its_order(linked):
    """After any message the next "same" is one too: whoever has heard it has read what came before."""
    zero, one = linked
    for number in (1, 2):
        zero.send_same(number)
        assert one.receive_same(number)
    zero.send(wire.pack_head(Kind.UNMAP, 5))
    zero.send_same(3)
    assert not one.receive_same(3)
    assert one.last_same == 2
    assert [one.receive(), one.receive()] == [wire.pack_head(Kind.UNMAP, 5), wire.pack_head(Kind.SAME, 3)]
    zero.send_same(4)
    assert one.receive_same(4)


def test_who_sleeps_gets_a_message(linked):
    """A rank that sleeps in poll() is woken; one that looks is not sent anything."""
    zero, one = linked
    zero.send_same(1)
    assert one.receive_same(1)
    one.set_sleeping(True)
    zero.send_same(2)
    one.set_sleeping(False)
    zero.send_same(3)
    assert one.last_same == 3
    assert [one.receive(), one.receive()] == [wire.pack_head(Kind.SAME, 2), None]


def test_no_wake_is_lost(linked):
    """Two threads in turn, each of which sleeps whenever the other is late, never miss one another."""
    rounds, late = 5000, []

    def play(link, leads):
        poller = select.poll()
        poller.register(link, select.POLLIN)
        for number in range(1, rounds):
            if leads:
                link.send_same(number)
            while link.last_same < number and not (number == 1 and link.receive_same(1)):
                link.set_sleeping(True)
                if link.last_same < number and not poller.poll(10_000):
                    late.append((number, link.peer))
                    return
                link.set_sleeping(False)
                while link.receive() is not None:
                    pass
                if number == 1:
                    break
            if not leads:
                link.send_same(number)

    threads = [
        threading.Thread(target=play, args=(link, leads)) for link, leads in zip(linked, (True, False), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (late, [thread.is_alive() for thread in threads]) == ([], [False, False])


def test_only_a_sealed_page_is_mapped(ends):
    """A descriptor of something else, or of memory that its owner could shrink, is not looked at: messages remain."""
    zero, one = ends
    zero.start(0)
    unsealed, other = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), os.open("/dev/null", os.O_RDONLY)
    os.ftruncate(unsealed, PAGE_BYTES)
    for file in (unsealed, other):
        one.send(wire.pack_head(Kind.SHARED_PAGE), [file])
        assert zero.receive() is None
    assert [zero.send_same(number) for number in (1, 2)] == [True, True]
    one.start(0)
    assert [one.receive() for _ in range(3)] == [wire.pack_head(Kind.SAME, 1), wire.pack_head(Kind.SAME, 2), None]
    fcntl.fcntl(unsealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    one.send(wire.pack_head(Kind.SHARED_PAGE), [unsealed])
    assert zero.receive() is None
    zero.send_same(3)
    zero.send_same(4)
    assert [one.receive(), one.receive(), one.last_same] == [wire.pack_head(Kind.SAME, 3), None, 4]
    os.close(unsealed)
    os.close(other)


def test_a_closed_link_has_no_page(linked):
    """Its page is unmapped, and no exchange is repeated over it any more."""
    zero, one = linked
    zero.send_same(1)
    one.close()
    assert (one.send_same(1), one.receive_same(1), one.last_same) == (False, False, 0)
    zero.close()
    assert "tracehook-page" not in Path("/proc/self/maps").read_text()
