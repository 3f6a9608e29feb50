"""How ranks find each other: addresses in the store, sockets between them, and who is turned away."""

import json
import os
import resource
import socket
import subprocess
import time
from typing import Any

import pytest
from torch.distributed import HashStore

from tracehook.errors import PeerError
from tracehook.ipc import connector, wire
from tracehook.ipc.connector import Connector, PeerAddress, obstacle
from tracehook.ipc.link import Link


@pytest.fixture
def things():
    """Return what is closed at the end of the test."""
    found: list[Any] = []
    yield found
    for thing in found:
        thing.close()


@pytest.fixture
def made(store, things):
    """Make the connector of a rank."""

    def make(rank, key=77):
        things.append(Connector(store, "channel", "peers of group g", key, rank, device=0))
        return things[-1]

    return make


@pytest.fixture
def pair(made):
    """Return the connectors of two ranks."""
    return made(0), made(1)


@pytest.fixture
def store():
    """A store of this process."""
    return HashStore()


@pytest.fixture
def meet(things):
    """Let the ranks look until each has the links it wants; return them by rank."""

    def look(wanted):
        links: dict[Connector, dict[int, Link]] = {place: {} for place in wanted}
        deadline = time.monotonic() + 10
        while any(set(wanted[place]) - set(links[place]) for place in wanted):
            assert time.monotonic() < deadline, "they never met"
            for place in wanted:
                for link in place.advance([peer for peer in wanted[place] if peer not in links[place]]):
                    links[place][link.peer] = link
        things.extend(link for found in links.values() for link in found.values())
        return links

    return look


def test_a_stranger_is_turned_away(store, pair, meet, things):
    """Who does not prove to have read this rank's address gets no link, and does not disturb those who do."""
    zero, one = pair
    strangers = [connected(address_of(store, 0)) for _ in range(3)]
    things += strangers
    strangers[0].send(b"hello")
    strangers[1].send(wire.pack_hello(wire.Hello(77, 1, 1, 0, b"guess" * 3 + b"!")))
    links = meet({zero: [1], one: [0]})
    assert [list(links[zero]), list(links[one])] == [[1], [0]]
    for stranger in strangers[:2]:
        stranger.setblocking(True)
        assert stranger.recv(100) == b""


def test_two_groups_do_not_meet(made):
    """The key of the group is part of the proof."""
    zero, one = made(0), made(1, key=78)
    one.advance([0])
    assert zero.advance([1]) == []
    with pytest.raises(PeerError):
        one.advance([0])


def test_a_peer_whose_process_has_ended(pair):
    """Its address is still in the store: the line says that nobody answers there, at once."""
    zero, one = pair
    zero.close()
    with pytest.raises(PeerError, match=r"rank 0 \(pid \d+\) does not answer on its socket"):
        one.advance([0])


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


def test_it_is_said_at_the_first_look(store, made):
    """A peer on another host is no matter for a deadline."""
    store.set("channel/1", json.dumps(ADDRESS._replace(boot="other", host="there")))
    with pytest.raises(PeerError, match="rank 1 cannot share memory with rank 0: it runs on host there"):
        made(0).advance([1])


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
def test_another_user_gets_no_link_with_the_right_secret(store, pair, meet):
    """The kernel says whose process it is: to have read the card in the store is not enough."""
    zero, one = pair
    hello = wire.pack_hello(wire.Hello(77, 1, 1, 0, bytes.fromhex(address_of(store, 0).secret)))
    command = ["/usr/bin/env", "python3", "-c", INTRUDER, address_of(store, 0).socket, hello.hex()]
    with subprocess.Popen(command, user=65534, stdout=subprocess.PIPE) as intruder:
        assert intruder.stdout is not None
        intruder.stdout.readline()  # it has sent its hello
        assert zero.advance([]) == []
        assert intruder.stdout.read() == b"nothing\n"
    meet({zero: [1], one: [0]})


def test_another_process_gets_no_link_with_the_right_secret(store, pair):
    """Nor is it enough to be of the same user: the card names the process too."""
    zero, one = pair
    store.set("channel/1", json.dumps(address_of(store, 1)._replace(pid=1)))
    one.advance([0])
    assert zero.advance([1]) == []
    with pytest.raises(PeerError, match="has turned rank 1 away"):
        one.advance([0])


@pytest.mark.parametrize(("changes", "makes_link"), [({"pids": 5}, True), ({}, False)])
def test_processes_are_compared_where_their_numbers_mean_the_same(store, pair, changes, makes_link):
    """In another namespace of processes a number says nothing, and the user and the secret have to do."""
    zero, one = pair
    store.set("channel/0", json.dumps(address_of(store, 0)._replace(pid=1, **changes)))
    if makes_link:
        one.advance([0])
        (link,) = zero.advance([1])
        link.close()
    else:
        with pytest.raises(PeerError, match=r"pid \d+ of user \d+ listens for rank 0; expected pid 1"):
            one.advance([0])


def test_silent_connections_are_capped(store, pair, meet, things):
    """However many connect and say nothing, a few are kept, and ranks meet."""
    zero, one = pair
    silent = []
    for _ in range(3):
        silent += [connected(address_of(store, 0)) for _ in range(100)]
        zero.advance([])
    things += silent
    meet({zero: [1], one: [0]})
    assert [sock.recv(1) for sock in silent[:200]] == [b""] * 200


def test_silent_connections_are_closed_after_a_while(store, made, things, monkeypatch):
    """A peer sends its first message as soon as it has connected."""
    zero = made(0)
    silent = connected(address_of(store, 0))
    things.append(silent)
    zero.advance([])
    with pytest.raises(BlockingIOError):
        silent.recv(1)
    monkeypatch.setattr(connector, "_LONGEST_SILENCE", 0.0)
    zero.advance([])
    assert silent.recv(1) == b""


def test_a_listener_without_room_is_tried_again(store, pair, meet, things):
    """Whoever fills a rank's queue of connections delays its peers, and blocks none of them."""
    zero, one = pair
    while (sock := connected(address_of(store, 0))) is not None:
        things.append(sock)
    assert one.advance([0]) == []
    meet({zero: [1], one: [0]})


def test_no_more_files(pair):
    """A process that may open no more files says so, and what to do."""
    zero, one = pair
    one.advance([0])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(PeerError, match="may open no more files: raise its limit"):
            zero.advance([1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
