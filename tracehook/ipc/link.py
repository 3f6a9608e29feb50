"""A connection to one peer process: whole messages in order, descriptors beside them, and its end seen at once."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from tracehook._core import ipc as native
from tracehook.errors import PeerLost
from tracehook.ipc import wire
from tracehook.ipc.arrivals import Arrivals

_ANCILLARY = socket.CMSG_SPACE(wire.HANDLES_OF_A_MESSAGE * array.array("i").itemsize)


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()  # of this process, to peers that are known
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)  # nothing was sent, and it can be later


class Link:
    """To one peer. Any thread may send; :meth:`receive` is for the thread that holds the group's lock.

    Handles of memory are sorted out where they are read: see :mod:`tracehook.ipc.arrivals`. "The same as last time"
    needs no message after the first (see cpp/ipc/lane.h), unless a message was sent since: what is said in both ways
    has one order.

    Never blocks but in :meth:`send`, when the peer has not read for so long that the system's buffer is full.
    """

    def __init__(self, sock: socket.socket, peer: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.life = 0  # of the peer's process: a random number
        self.arrivals = Arrivals()
        self._lane: native.Lane | None = None  # None until it is known who is at the other end
        self._says_by_message = True
        self._hears_by_message = True
        self.ended: str | None = None  # why there will be no more
        self.said_bye = False  # the peer did: it ended in order
        self._reading = threading.Lock()
        self._read: deque[bytes] = deque()  # what was read on the way, not yet taken

    def fileno(self) -> int:
        """Return the descriptor, for poll(); -1 once closed."""
        return self.sock.fileno()

    def send(self, data: bytes, files: Sequence[int] = (), timeout: float = 10.0) -> None:
        """Send one message. Raises :class:`PeerLost` if the peer has ended, or does not read for `timeout` seconds."""
        if self.ended is not None:
            raise self.lost()
        self._says_by_message = True
        deadline = 0.0
        while True:
            try:
                if files:
                    socket.send_fds(self.sock, [data], list(files))
                else:
                    self.sock.send(data)
                return
            except OSError as problem:
                if problem.errno not in _FULL:
                    self._end(problem)
                    raise self.lost() from None
                deadline = deadline or time.monotonic() + timeout
                self._wait_for_room(deadline, timeout, problem.errno)

    def _wait_for_room(self, deadline: float, timeout: float, why: int) -> None:
        # Of memory, or of descriptors on their way: no event tells when there is room again.
        is_scarce = why != errno.EAGAIN
        # It may be waiting for room as well, and not only for ours: what all have sent is kept for receive().
        links = {link.fileno(): link for link in [self, *_LINKS] if link.ended is None}
        poller = select.poll()
        for file in links:
            poller.register(file, select.POLLIN)
        if not is_scarce:
            poller.modify(self.fileno(), select.POLLOUT | select.POLLIN)
        left = deadline - time.monotonic()
        events = dict(poller.poll(1 if is_scarce else max(0.0, left) * 1000))
        if left <= 0 and not events.get(self.fileno(), 0) & select.POLLOUT:
            self.ended = f"rank {self.peer} has read nothing for {timeout:g} s"
            raise self.lost()
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
        """Send one message, if there is somebody to read it."""
        try:
            self.send(data)
        except PeerLost:
            return

    def receive(self) -> bytes | None:
        """Return the next message; None if there is none now. Raises :class:`PeerLost` if there will be none."""
        with self._reading:
            if self._read:
                return self._read.popleft()
            message = self._receive()
        if message is None and self.ended is not None:
            raise self.lost()
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
            if not self._sort_out(data, files):
                return data
        self._end(None)
        return None

    def _sort_out(self, data: bytes, files: Sequence[int]) -> bool:
        """Whether these are handles, which are kept apart. Nothing else comes with descriptors."""
        if data[0] == wire.Kind.HANDLES:
            self.arrivals.take(data, files)
            return True
        self._hears_by_message = data[0] != wire.Kind.SAME
        is_lane = data[0] == wire.Kind.LANE
        lane = self._lane
        try:
            if is_lane and files and lane is not None:
                lane.meet(files[0])  # or else the peer goes on by messages: it sees that its page was not taken
        finally:
            close_files(files)
        return is_lane

    # --- the same as last time ---

    def open(self, device: int) -> None:
        """Begin, now that it is known who is at the other end; `device` is where memory of the peer is mapped."""
        self.arrivals.expect(device)
        _LINKS.add(self)
        with contextlib.suppress(OSError, RuntimeError):
            self._lane = native.Lane(self.sock.fileno())
        if self._lane is not None:
            page = self._lane.hand_over()
            try:
                self.send(wire.pack_head(wire.Kind.LANE), [page])
            finally:
                os.close(page)

    def say_same(self, number: int) -> bool:
        """Say "the same as last time", if that can be done at once."""
        lane = self._lane
        if lane is None or self.ended is not None:
            return False
        if not self._says_by_message:
            return lane.say(number)
        # The first one since a message is one itself: who has read it has read all before it.
        self._says_by_message = not lane.is_met
        return lane.send(number)

    def hear_same(self, number: int) -> bool:
        """Wait for "the same as last time" for some microseconds, if it comes next. Other messages are kept."""
        lane = self._lane
        if lane is None:
            return False
        if not self._hears_by_message:
            return lane.wait_for(number)
        with self._reading:
            if self._read or self.ended is not None:
                return False
            taken = lane.take(number, wire.MOST_BYTES)
            if isinstance(taken, bool):
                self._hears_by_message = not taken
                return taken
            data, files = taken
            if not self._sort_out(data, files):
                self._read.append(data)
            return False

    @property
    def heard(self) -> int:
        """The number of the last exchange that the peer said without a message to be the same; 0 if none."""
        return 0 if self._lane is None else self._lane.heard

    def close_lane(self) -> None:
        """Unmap what both processes share: no exchange is said or heard any more."""
        self._lane = None

    def rest(self, begins: bool) -> None:
        """Let the peer wake this rank by a message, or not any more."""
        if self._lane is not None:
            self._lane.rest(begins)

    def hang_up(self) -> None:
        """Read what is left after the peer's end, for :meth:`receive`. Called by the watcher."""
        with self._reading:
            while self.ended is None:
                message = self._receive()
                if message is None:
                    break
                self.said_bye = self.said_bye or message[0] == wire.Kind.BYE
                self._read.append(message)
            if self.ended is None:
                self._end(None)

    def _end(self, problem: OSError | None) -> None:
        if self.ended is None:
            expected = problem is None or problem.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
            why = "" if expected else f" ({problem.strerror})" if problem is not None else ""
            self.ended = f"the process of rank {self.peer} has ended{why}"

    def lost(self) -> PeerLost:
        """Return the exception for the end of this link."""
        return PeerLost(self.ended or f"rank {self.peer} is gone", self.peer)

    def close(self) -> None:
        """Close the socket, and drop what came over it unread."""
        self.ended = self.ended or "the group was closed"
        self._read.clear()
        self.arrivals.close()
        self.close_lane()
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
