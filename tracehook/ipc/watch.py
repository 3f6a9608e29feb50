"""A thread for each group that sleeps until a peer's process ends, and that sees a closed group's peers off."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tracehook.ipc.peer import Peer

_RESCUE = (0.002, 0.1)  # seconds between two rescues of streams that wait for a dead peer: first, and at most
_NEVER = 1e6
_FAREWELL = 0.02  # seconds between two looks whether tensors on a peer's memory still live, after close()


class Watched(Protocol):
    """What the thread asks of its group. It holds no lock of the group's."""

    is_leaving: bool

    def rescue(self, peer: Peer) -> bool:
        """Let streams go on that wait for this dead peer; False once there can be none."""

    def farewell(self, peer: Peer) -> bool:
        """After close(): read what the peer says; True when nothing is left to do with it."""


class Watch:
    """See the module."""

    def __init__(self, group: Watched) -> None:
        self._group = group
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # table work only
        self._peers: list[Peer] = []
        self._thread: threading.Thread | None = None

    def add(self, peer: Peer) -> None:
        """Watch this peer too."""
        with self._lock:
            self._peers.append(peer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tracehook-peers", daemon=True)
                self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Look again: something has changed."""
        os.eventfd_write(self._wake, 1)

    def leave(self) -> None:
        """The group is closed: the thread ends when all peers are seen off."""
        if self._thread is None:
            os.close(self._wake)
        else:
            self.wake()

    def after_fork_in_child(self) -> None:
        """There is no thread here."""
        os.close(self._wake)

    def _run(self) -> None:
        dead: dict[Peer, float] = {}  # seconds until the next rescue
        while True:
            leaving = self._group.is_leaving
            with self._lock:
                peers = [peer for peer in self._peers if leaving or peer not in dead]
            if leaving:
                peers = [peer for peer in peers if not self._group.farewell(peer)]
                if not peers:
                    break
            events = self._poll(peers, leaving, None if leaving else min(dead.values(), default=None))
            for peer in peers:
                if events.get(peer.link.fileno(), 0) & (select.POLLHUP | select.POLLERR):
                    peer.link.hang_up()
                    if not leaving:
                        peer.lost()
                        dead[peer] = _RESCUE[0]
            for peer, pause in dead.items() if not leaving else ():
                dead[peer] = min(2 * pause, _RESCUE[1]) if self._group.rescue(peer) else _NEVER
        os.close(self._wake)

    def _poll(self, peers: list[Peer], leaving: bool, rescue: float | None) -> dict[int, int]:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for peer in peers:
            if peer.link.ended is not None:
                continue
            # Nothing but the end, which poll() always tells: messages are for the program's own calls.
            poller.register(peer.link.fileno(), select.POLLIN if leaving else 0)
        pauses = [pause for pause in (rescue, _FAREWELL if leaving else None) if pause is not None]
        events = dict(poller.poll(min(pauses) * 1000 if pauses else None))
        if self._wake in events:
            os.eventfd_read(self._wake)
        return events
