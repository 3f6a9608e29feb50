"""A connection to one peer process: whole messages in order, descriptors beside them, and its end seen at once."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence

from tracehook.errors import PeerLost
from tracehook.ipc import wire
from tracehook.ipc.handles import ReceivedHandles
from tracehook.log import clock

_ANCILLARY = socket.CMSG_SPACE(wire.HANDLES_OF_A_MESSAGE * array.array("i").itemsize)
_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()  # of this process, to peers that are known


class _Listing:
    lock = threading.Lock()  # of _LINKS, for moments


def _forget_lock() -> None:
    _Listing.lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)  # nothing was sent, and it can be later


class Link:
    """To one peer. Any thread may send; :meth:`receive` is for the thread that holds the group's lock.

    The thread that reads handles of memory imports them: see :mod:`tracehook.ipc.handles`.

    Never blocks but in :meth:`send`, when the peer has not read for so long that the system's buffer is full. What
    :meth:`try_send` finds no room for goes before anything that is sent later.
    """

    def __init__(self, sock: socket.socket, peer: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.life = 0  # of the peer's process: a random number
        self.handles = ReceivedHandles()
        self.ended: str | None = None  # why there will be no more
        self.peer_closed = False  # the peer ended in order
        self.is_closing = False  # the group of this rank is closed
        self._sending = threading.Lock()  # one packet; never during a wait
        self._unsent: deque[bytes] = deque()  # there was no room for them
        self._reading = threading.Lock()
        self._read: deque[bytes] = deque()  # what was read on the way, not yet taken

    def fileno(self) -> int:
        """Return the descriptor, for poll(); -1 once closed."""
        return self.sock.fileno()

    def send(self, data: bytes, files: Sequence[int] = (), timeout: float = 10.0) -> None:
        """Send one message. Raises :class:`PeerLost` if the peer has ended, or does not read for `timeout` seconds."""
        deadline = 0.0
        while True:
            with self._sending:
                problem = self._send_unsent() or self._send(data, files)
            if self.ended is not None:
                raise self.lost_error()
            if not problem:
                return
            deadline = deadline or clock.monotonic() + timeout
            self._wait_for_room(deadline, timeout, problem)

    def _send(self, data: bytes, files: Sequence[int] = ()) -> int:
        """Send one packet now; return why there is no room, 0 if it went or the link has ended."""
        if self.ended is not None:
            return 0
        try:
            if files:
                socket.send_fds(self.sock, [data], list(files))
            else:
                self.sock.send(data)
        except OSError as problem:
            if problem.errno in _FULL:
                return problem.errno
            self.read_to_end(problem)  # it may have said before that it closes its group
        return 0

    def _send_unsent(self) -> int:
        while self._unsent:
            problem = self._send(self._unsent[0])
            if problem:
                return problem
            self._unsent.popleft()
        return 0

    def _wait_for_room(self, deadline: float, timeout: float, why: int) -> None:
        # Of memory, or of descriptors on their way: no event tells when there is room again.
        is_scarce = why != errno.EAGAIN
        # It may be waiting for room as well, and not only for ours: what all have sent is kept for receive().
        with _Listing.lock:
            links = {link.fileno(): link for link in [self, *_LINKS] if link.ended is None}
        poller = select.poll()
        for file in links:
            poller.register(file, select.POLLIN)
        if not is_scarce:
            poller.modify(self.fileno(), select.POLLOUT | select.POLLIN)
        left = deadline - clock.monotonic()
        events = dict(poller.poll(1 if is_scarce else max(0.0, left) * 1000))
        if left <= 0 and not events.get(self.fileno(), 0) & select.POLLOUT:
            self.ended = f"rank {self.peer} has read nothing for {timeout:g} s"
            raise self.lost_error()
        for file, event in events.items():
            if event & select.POLLIN:
                links[file]._read_ahead()

    def _read_ahead(self) -> None:
        if self._reading.acquire(blocking=False):  # else somebody reads it already
            try:
                message = self._receive() if self.ended is None else None
                if message is not None:
                    self._read.append(message)
            finally:
                self._reading.release()

    def try_send(self, data: bytes) -> None:
        """Send one message without waiting: now, or before the next one that finds room."""
        with self._sending:
            if self._send_unsent() or self._send(data):
                self._unsent.append(data)

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for room."""
        return bool(self._unsent)

    def receive(self) -> bytes | None:
        """Return the next message; None if there is none now. Raises :class:`PeerLost` if there will be none."""
        if self._unsent:
            with self._sending:
                self._send_unsent()
        with self._reading:
            if self._read:
                return self._read.popleft()
            message = self._receive()
        if message is None and self.ended is not None:
            raise self.lost_error()
        return message

    def _receive(self) -> bytes | None:
        resets = 0
        while resets < 2:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(wire.MOST_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                resets += 1  # the peer ended with messages of ours unread; its own may still be here
                continue
            except OSError as problem:
                self._end(problem)
                return None
            if not data:
                break
            files = _descriptors(ancillary) if ancillary else ()
            if data[0] == wire.Kind.HANDLES:
                self.handles.add(data, files)
                continue
            close_files(files)  # nothing else comes with descriptors
            return data
        self._end(None)
        return None

    def start(self, device: int) -> None:
        """Import handles of this peer from now on, for `device`."""
        self.handles.accept(device)
        with _Listing.lock:
            _LINKS.add(self)

    def read_to_end(self, problem: OSError | None = None) -> None:
        """Read what is left after the peer's end, for :meth:`receive`. Takes the lock of reading.

        `problem`: what a call said of the end, if one did.
        """
        with self._reading:
            while self.ended is None:
                message = self._receive()
                if message is None:
                    break
                self.peer_closed = self.peer_closed or message[0] == wire.Kind.BYE
                self._read.append(message)
            self._end(problem)

    def _end(self, problem: OSError | None) -> None:
        if self.ended is None:
            expected = problem is None or problem.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
            why = "" if expected else f" ({problem.strerror})" if problem is not None else ""
            self.ended = f"the process of rank {self.peer} has ended{why}"

    def lost_error(self) -> PeerLost:
        """Return the exception for the end of this link."""
        return PeerLost(self.ended or f"rank {self.peer} is gone", self.peer)

    def close(self) -> None:
        """Close the socket, and drop what came over it unread."""
        self.ended = self.ended or "the group was closed"
        self._read.clear()
        self._unsent.clear()
        self.handles.close()
        self.sock.close()


def close_files(files: Sequence[int]) -> None:
    """Close descriptors that came beside a message."""
    for file in files:
        os.close(file)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> Sequence[int]:
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return list(files)
