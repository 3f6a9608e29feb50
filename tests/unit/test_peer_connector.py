"""How ranks find each other: addresses in the store, sockets between them, and who is turned away."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time

import pytest
from torch.distributed import HashStore

from tracehook.errors import PeerError
from tracehook.ipc import connector, wire
from tracehook.ipc.connector import Connector, PeerAddress, obstacle
from tracehook.ipc.events import own_life
from tracehook.ipc.link import Link


def made(store, rank, key=77):
    """Return the connector of a rank."""
    return Connector(store, "channel", "peers of group g", key, rank, device=0)


@pytest.fixture
def store():
    """A store of this process."""
    return HashStore()


def meet(ranks, wanted):
    """Let the ranks look until each has the links it wants; return them by rank."""
    links: dict[Connector, dict[int, Link]] = {place: {} for place in ranks}
    deadline = time.monotonic() + 10
    while any(set(wanted[place]) - set(links[place]) for place in ranks):
        assert time.monotonic() < deadline, "they never met"
        for place in ranks:
            for link in place.advance([peer for peer in wanted[place] if peer not in links[place]]):
                links[place][link.peer] = link
    return links


def test_three_ranks_meet_in_any_order(store):
    """Each gets one link to each other, with its rank; a rank that wants nobody lets the others in."""
    zero, one, two = (made(store, rank) for rank in range(3))
    links = meet([two, zero, one], {zero: [1, 2], one: [0], two: [0, 1]})
    assert sorted(links[zero]) == [1, 2]
    links[zero][2].send(b"to two")
    links[zero][1].send(b"to one")
    assert links[two][0].receive() == b"to two"
    assert links[one][0].receive() == b"to one"
    assert links[zero][1].life == own_life()
    for place in (zero, one, two):
        place.close()
        for link in links[place].values():
            link.close()


def test_a_stranger_is_turned_away(store):
    """Who does not prove to have read this rank's address gets no link, and does not disturb those who do."""
    zero, one = made(store, 0), made(store, 1)
    address = PeerAddress(*json.loads(store.get("channel/0")))
    strangers = []
    for data in (b"hello", wire.pack_hello(wire.Hello(77, 1, 1, 0, b"guess" * 3 + b"!")), None):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(f"\0{address.socket}")
        if data is not None:
            stranger.send(data)
        strangers.append(stranger)
    links = meet([zero, one], {zero: [1], one: [0]})
    assert [list(links[zero]), list(links[one])] == [[1], [0]]
    assert [stranger.recv(100) for stranger in strangers[:2]] == [b"", b""]
    for thing in (*strangers, zero, one, links[zero][1], links[one][0]):
        thing.close()


def test_two_groups_do_not_meet(store):
    """The key of the group is part of the proof."""
    zero, one = made(store, 0), made(store, 1, key=78)
    one.advance([0])
    assert zero.advance([1]) == []
    with pytest.raises(PeerError):
        one.advance([0])
    for place in (zero, one):
        place.close()


def test_a_peer_whose_process_has_ended(store):
    """Its address is still in the store: the line says that nobody answers there, at once."""
    zero, one = made(store, 0), made(store, 1)
    zero.close()
    with pytest.raises(PeerError, match=r"rank 0 \(pid \d+\) does not answer on its socket"):
        one.advance([0])
    one.close()


ADDRESS = PeerAddress(3, "here", "boot", 4026531840, 1000, 7, "name", "00" * 16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"pid": 1}, ""),
        ({"boot": "other", "host": "there"}, "it runs on host there, this rank on here: make a PeerGroup of the ranks"),
        ({"network": 5}, "it is in network namespace 5, this rank in 4026531840: run the ranks of a host in one"),
        ({"user": 0}, "it runs as user 0, this rank as 1000"),
        ({"major": 1}, "it speaks version 1 of the protocol, this rank 3: install the same tracehook"),
    ],
)
def test_who_cannot_share_memory(changes, said):
    """Other hosts, network namespaces, users and versions: what was seen, what was expected, what to do."""
    found = obstacle(ADDRESS, ADDRESS._replace(**changes))
    assert found.startswith(said) if said else found == ""


def test_it_is_said_at_the_first_look(store):
    """A peer on another host is no matter for a deadline."""
    zero = made(store, 0)
    store.set("channel/1", json.dumps(ADDRESS._replace(boot="other", host="there")))
    with pytest.raises(PeerError, match="rank 1 cannot share memory with rank 0: it runs on host there"):
        zero.advance([1])
    zero.close()


def connected(place_address):
    """Return a socket that has connected and says nothing; None if the listener has no room for it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        sock.connect(f"\0{place_address.socket}")
    except BlockingIOError:
        sock.close()
        return None
    return sock


def address_of(store, rank):
    """Return the card of a rank."""
    return PeerAddress(*json.loads(store.get(f"channel/{rank}")))


INTRUDER = """import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect("\\0" + sys.argv[1])
sock.send(bytes.fromhex(sys.argv[2]))
print(flush=True)
try:
    print("an answer" if sock.recv(1000) else "nothing")
except ConnectionResetError:
    print("nothing")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_gets_no_link_with_the_right_secret(store):
    """The kernel says whose process it is: to have read the card in the store is not enough."""
    zero, one = made(store, 0), made(store, 1)
    hello = wire.pack_hello(wire.Hello(77, 1, 1, 0, bytes.fromhex(address_of(store, 0).secret)))
    command = ["/usr/bin/env", "python3", "-c", INTRUDER, address_of(store, 0).socket, hello.hex()]
    with subprocess.Popen(command, user=65534, stdout=subprocess.PIPE) as intruder:
        assert intruder.stdout is not None
        intruder.stdout.readline()  # it has sent its hello
        assert zero.advance([]) == []
        assert intruder.stdout.read() == b"nothing\n"
    links = meet([zero, one], {zero: [1], one: [0]})
    for thing in (zero, one, links[zero][1], links[one][0]):
        thing.close()


def test_another_process_gets_no_link_with_the_right_secret(store):
    """Nor is it enough to be of the same user: the card names the process too."""
    zero, one = made(store, 0), made(store, 1)
    store.set("channel/1", json.dumps(address_of(store, 1)._replace(pid=1)))
    one.advance([0])
    assert zero.advance([1]) == []
    with pytest.raises(PeerError, match="has turned rank 1 away"):
        one.advance([0])
    for place in (zero, one):
        place.close()


@pytest.mark.parametrize(("changes", "makes_link"), [({"pids": 5}, True), ({}, False)])
def test_processes_are_compared_where_their_numbers_mean_the_same(store, changes, makes_link):
    """In another namespace of processes a number says nothing, and the user and the secret have to do."""
    zero, one = made(store, 0), made(store, 1)
    store.set("channel/0", json.dumps(address_of(store, 0)._replace(pid=1, **changes)))
    if makes_link:
        one.advance([0])
        (link,) = zero.advance([1])
        link.close()
    else:
        with pytest.raises(PeerError, match=r"pid \d+ of user \d+ listens for rank 0; expected pid 1"):
            one.advance([0])
    for place in (zero, one):
        place.close()


def test_silent_connections_are_capped(store):
    """However many connect and say nothing, a few are kept, and ranks meet."""
    zero, one = made(store, 0), made(store, 1)
    silent = []
    for _ in range(3):
        silent += [connected(address_of(store, 0)) for _ in range(100)]
        zero.advance([])
    links = meet([zero, one], {zero: [1], one: [0]})
    assert [sock.recv(1) for sock in silent[:200]] == [b""] * 200
    for thing in (*silent, zero, one, links[zero][1], links[one][0]):
        thing.close()


def test_silent_connections_are_closed_after_a_while(store, monkeypatch):
    """A peer sends its first message as soon as it has connected."""
    zero = made(store, 0)
    silent = connected(address_of(store, 0))
    zero.advance([])
    with pytest.raises(BlockingIOError):
        silent.recv(1)
    monkeypatch.setattr(connector, "_LONGEST_SILENCE", 0.0)
    zero.advance([])
    assert silent.recv(1) == b""
    silent.close()
    zero.close()


def test_a_listener_without_room_is_tried_again(store):
    """Whoever fills a rank's queue of connections delays its peers, and blocks none of them."""
    zero, one = made(store, 0), made(store, 1)
    silent = []
    while (sock := connected(address_of(store, 0))) is not None:
        silent.append(sock)
    assert one.advance([0]) == []
    links = meet([zero, one], {zero: [1], one: [0]})
    for thing in (*silent, zero, one, links[zero][1], links[one][0]):
        thing.close()


def test_no_more_files(store):
    """A process that may open no more files says so, and what to do."""
    zero, one = made(store, 0), made(store, 1)
    one.advance([0])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(PeerError, match="may open no more files: raise its limit"):
            zero.advance([1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    for place in (zero, one):
        place.close()
