"""How two ranks of a group find each other: each puts its address into the store, then one connects to the other.

The lower rank listens, the higher connects. The kernel tells each whose process the other is. Each proves in its first
message that it has read the other's address. A rank that waits for one peer accepts all others meanwhile, so no order
of connections can lock the ranks up.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tracehook.errors import PeerError, PeerLost
from tracehook.ipc import wire
from tracehook.ipc.events import own_life
from tracehook.ipc.link import Link
from tracehook.log import clock

LOOK_INTERVAL = 0.005  # seconds between two looks into the store
# A peer says who it is as soon as it has connected. So these bound what others can take of this process's descriptors.
_MOST_SILENT = 64
_LONGEST_SILENCE = 10.0  # seconds
_MOST_AT_ONCE = 256  # connections accepted in one look
_UCRED = struct.Struct("3i")


class PeerAddress(NamedTuple):
    """Where the others of its group reach a rank. `boot` and `network` tell whether a socket can.

    `pids` is the namespace in which `pid` means this process.
    """

    major: int
    host: str
    boot: str
    network: int
    user: int
    pid: int
    socket: str
    secret: str
    pids: int = 0


class Credentials(NamedTuple):
    """Who connected, or who listens. A process that this one cannot see has the number 0."""

    pid: int
    user: int
    group: int


class Connector:
    """The links of one rank to the other ranks of one group, made when they are first wanted."""

    def __init__(self, store: Any, channel: str, about: str, key: int, rank: int, device: int) -> None:
        self._store = store
        self._channel = channel
        self.about = about
        self._key = key
        self._rank = rank
        self._device = device
        self._secret = secrets.token_bytes(16)
        self._addresses: dict[int, PeerAddress] = {}
        self._unanswered: dict[int, Link] = {}  # to lower ranks, which have this rank's hello and owe theirs
        self._unidentified: dict[socket.socket, float] = {}  # accepted when, and silent so far
        name = f"tracehook-{secrets.token_hex(16)}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"\0{name}")
        self.listener.listen(128)
        self.listener.setblocking(False)
        self._mine = _own_address(name, self._secret.hex())
        store.set(f"{channel}/{rank}", json.dumps(self._mine))

    def close(self) -> None:
        """Close everything that is no link yet."""
        for sock in (self.listener, *self._unidentified, *(link.sock for link in self._unanswered.values())):
            sock.close()
        self._unidentified.clear()
        self._unanswered.clear()
        self._store = None  # a connection of our own

    def advance(self, wanted: Iterable[int]) -> list[Link]:
        """Take what steps can be taken now towards links with these peers; return the links that are made.

        Raises :class:`PeerError` at once if one of them cannot be reached from here.
        """
        for peer in wanted:
            address = self._address(peer)
            if address is not None and peer < self._rank and peer not in self._unanswered:
                self._connect(peer, address)
        return [*self._accept(), *self._completed()]

    def wait(self, seconds: float, links: Iterable[Link]) -> None:
        """Wait until something may have changed, also on these links."""
        poller = select.poll()
        for link in (*links, *self._unanswered.values()):
            poller.register(link, select.POLLIN)
        for sock in (self.listener, *self._unidentified):
            poller.register(sock, select.POLLIN)
        poller.poll(max(0.0, min(LOOK_INTERVAL, seconds)) * 1000)

    def is_announced(self, peer: int) -> bool:
        """Whether this peer has made its end of the group."""
        return peer in self._addresses

    def _address(self, peer: int) -> PeerAddress | None:
        if peer not in self._addresses:
            key = f"{self._channel}/{peer}"
            if not self._store.check([key]):
                return None
            address = PeerAddress(*json.loads(self._store.get(key))[: len(PeerAddress._fields)])
            problem = obstacle(self._mine, address)
            if problem:
                text = f"{self.about}: rank {peer} cannot share memory with rank {self._rank}: {problem}"
                raise PeerError(text, advice="")
            self._addresses[peer] = address
        return self._addresses[peer]

    def _hello(self, peer: int) -> bytes:
        secret = bytes.fromhex(self._addresses[peer].secret)
        return wire.pack_hello(wire.Hello(self._key, own_life(), self._rank, self._device, secret))

    def _connect(self, peer: int, address: PeerAddress) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(f"\0{address.socket}")
        except BlockingIOError:
            sock.close()  # too many wait to be accepted: the next look tries again
            return
        except OSError as problem:
            sock.close()
            raise PeerError(
                f"{self.about}: rank {peer} (pid {address.pid}) does not answer on its socket ({problem.strerror}): "
                "its process has ended, or has closed its PeerGroup",
                advice="Look at why, in its stderr and its log",
            ) from None
        found = credentials_of(sock)
        if not self._is_owner(found, address):
            sock.close()
            raise PeerError(
                f"{self.about}: pid {found.pid} of user {found.user} listens for rank {peer}; expected pid "
                f"{address.pid} of user {os.geteuid()}: look at what that process is",
                advice="",
            )
        link = Link(sock, peer)
        self._unanswered[peer] = link
        link.send(self._hello(peer))

    def _is_owner(self, found: Credentials, address: PeerAddress) -> bool:
        """Whether a process of this user, and where numbers can be compared the one that made this address."""
        is_comparable = address.pids == self._mine.pids != 0
        return found.user == os.geteuid() and (found.pid == address.pid or not is_comparable)

    def _accept(self) -> list[Link]:
        self._let_in()
        made = []
        for sock in list(self._unidentified):
            link = Link(sock, -1)
            with contextlib.suppress(Exception):
                message = link.receive()
                if message is None:
                    continue
                hello = self._verified(message)
                address = self._address(hello.rank) if hello is not None else None
                if hello is not None and address is not None and self._is_owner(credentials_of(sock), address):
                    link.peer, link.life = hello.rank, hello.life
                    link.send(self._hello(hello.rank))
                    del self._unidentified[sock]
                    made.append(link)
                    continue
            self._turn_away(sock)  # whoever it was, it did not prove that it belongs here
        self._turn_silent_away()
        return made

    def _let_in(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE):
                    raise PeerError(
                        f"{self.about}: rank {self._rank} cannot accept its peers, because this process may open no "
                        "more files: raise its limit (ulimit -n)",
                        advice="",
                    ) from None
                continue  # who wanted to connect is gone
            if credentials_of(sock).user != os.geteuid():
                sock.close()
                continue
            sock.setblocking(False)
            self._unidentified[sock] = clock.monotonic()

    def _turn_silent_away(self) -> None:
        oldest_first = list(self._unidentified)
        now = clock.monotonic()
        for number, sock in enumerate(oldest_first):
            if len(oldest_first) - number > _MOST_SILENT or now - self._unidentified[sock] > _LONGEST_SILENCE:
                self._turn_away(sock)

    def _turn_away(self, sock: socket.socket) -> None:
        del self._unidentified[sock]
        sock.close()

    def _verified(self, data: bytes) -> wire.Hello | None:
        hello = wire.unpack_hello(data)
        right = hello.group == self._key and secrets.compare_digest(hello.secret, self._secret)
        return hello if right and hello.rank > self._rank else None

    def _completed(self) -> list[Link]:
        made = []
        for peer, link in list(self._unanswered.items()):
            try:
                message = link.receive()
            except PeerLost as problem:
                self._unanswered.pop(peer).close()
                text = f"{self.about}: {problem.text}, or has turned rank {self._rank} away"
                raise PeerError(text, advice=problem.advice) from None
            if message is None:
                continue
            del self._unanswered[peer]
            hello = wire.unpack_hello(message)
            if hello.rank != peer or not secrets.compare_digest(hello.secret, self._secret):
                link.close()
                text = f"{self.about}: whoever answers for rank {peer} is not that rank"
                raise PeerError(text, advice="Look at which processes of other jobs run on this host")
            link.life = hello.life
            made.append(link)
        return made


def credentials_of(sock: socket.socket) -> Credentials:
    """Return the credentials of the process at the other end of a connected socket."""
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def namespace(kind: str) -> int:
    """Return the number of this process's namespace ("net", "pid"); 0 if the system does not say."""
    try:
        return Path(f"/proc/self/ns/{kind}").stat().st_ino
    except OSError:
        return 0


def _own_address(name: str, secret: str) -> PeerAddress:
    return PeerAddress(
        wire.MAJOR,
        os.uname().nodename,
        _text("/proc/sys/kernel/random/boot_id"),
        namespace("net"),
        os.geteuid(),
        os.getpid(),
        name,
        secret,
        namespace("pid"),
    )


def obstacle(mine: PeerAddress, peer: PeerAddress) -> str:
    """Return why memory cannot be shared with the owner of `peer`, and what to do; empty if it can."""
    if peer.major != mine.major:
        return f"it speaks version {peer.major} of the protocol, this rank {mine.major}: install the same tracehook"
    if peer.boot != mine.boot:
        return f"it runs on host {peer.host}, this rank on {mine.host}: make a PeerGroup of the ranks of one host"
    if peer.network != mine.network:
        return (
            f"it is in network namespace {peer.network}, this rank in {mine.network}: run the ranks of a host in one "
            "container, or with --network=host"
        )
    if peer.user != mine.user:
        return f"it runs as user {peer.user}, this rank as {mine.user}: run all ranks as one user"
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
