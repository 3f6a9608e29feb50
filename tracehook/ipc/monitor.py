"""A thread for each group: it sleeps until a peer's process ends, and closes the links of a closed group."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Protocol

from tracehook.hook import background

if TYPE_CHECKING:
    from tracehook.ipc.peer import Peer

_UNBLOCK_PAUSE = (0.002, 0.1)  # seconds until streams that wait for a dead peer are unblocked again: first, at most
_NEVER = 1e6
_CLOSE_INTERVAL = 0.02  # seconds between two looks whether tensors on a peer's memory still live, after close()


class Monitored(Protocol):
    """What the thread asks of its group. It holds no lock of the group's."""

    is_closing: bool

    def unblock_streams(self, peer: Peer) -> bool:
        """Let streams go on that wait for this dead peer; False once there can be none."""

    def close_link(self, peer: Peer) -> bool:
        """After close(): read what the peer sends; True once its link is closed."""


class PeerMonitor:
    """See the module."""

    def __init__(self, group: Monitored) -> None:
        self._group = group
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # table work only
        self._peers: list[Peer] = []
        self._thread: threading.Thread | None = None
        self._is_over = False

    def add(self, peer: Peer) -> None:
        """Watch this peer too."""
        with self._lock:
            self._peers.append(peer)
            if self._thread is None:
                self._thread = background.start(self, self._run, "tracehook-peers")
        self.wake()

    def wake(self) -> None:
        """Look again: something has changed."""
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Let the thread end when all links of the group, which was closed, are closed."""
        if self._thread is None:
            os.close(self._wake)
        else:
            self.wake()

    def end_soon(self) -> None:
        """At exit: watch no peer any more."""
        self._is_over = True
        self.wake()

    def after_fork_in_child(self) -> None:
        """Close what is the parent's: there is no thread here."""
        os.close(self._wake)

    def _run(self) -> None:
        dead: dict[Peer, float] = {}  # seconds until its streams are unblocked again
        while not self._is_over:
            closing = self._group.is_closing
            with self._lock:
                peers = [peer for peer in self._peers if closing or peer not in dead]
            if closing:
                peers = [peer for peer in peers if not self._group.close_link(peer)]
                if not peers:
                    os.close(self._wake)
                    return
            polled = self._poll(peers, closing, None if closing else min(dead.values(), default=None))
            for peer in peers:
                if polled.get(peer.link.fileno(), 0) & (select.POLLHUP | select.POLLERR):
                    peer.link.read_to_end()
                    if not closing:
                        peer.handle_loss()
                        dead[peer] = _UNBLOCK_PAUSE[0]
            for peer, pause in dead.items() if not closing else ():
                dead[peer] = min(2 * pause, _UNBLOCK_PAUSE[1]) if self._group.unblock_streams(peer) else _NEVER

    def _poll(self, peers: list[Peer], closing: bool, unblock: float | None) -> dict[int, int]:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for peer in peers:
            if peer.link.ended is not None:
                continue
            # Nothing but the end, which poll() always tells: messages are for the program's own calls.
            poller.register(peer.link.fileno(), select.POLLIN if closing else 0)
        pauses = [pause for pause in (unblock, _CLOSE_INTERVAL if closing else None) if pause is not None]
        polled = dict(poller.poll(min(pauses) * 1000 if pauses else None))
        if self._wake in polled:
            os.eventfd_read(self._wake)
        return polled
