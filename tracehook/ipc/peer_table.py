"""The peers of one rank in one group: connected when first wanted, and waited for with a deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tracehook.errors import PeerTimeout
from tracehook.ipc import outbox
from tracehook.ipc.connector import Connector
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.peer import Peer
from tracehook.ipc.semaphores import Semaphores
from tracehook.ipc.tables import EXPORTS

if TYPE_CHECKING:
    import torch

    from tracehook.ipc.inbox import Inbox
    from tracehook.ipc.monitor import PeerMonitor
    from tracehook.ipc.peer import Result


class PeerTable:
    """Belongs to the thread that holds the group's lock."""

    def __init__(
        self,
        connector: Connector,
        inbox: Inbox,
        monitor: PeerMonitor,
        events: PeerEvents,
        size: int,
        device: torch.device,
    ) -> None:
        self.by_rank: dict[int, Peer] = {}
        self.timeout = 0.0  # seconds that a call waits
        self._connector = connector
        self._inbox = inbox
        self._monitor = monitor
        self._events = events
        self._size = size
        self._device = device

    @property
    def about(self) -> str:
        """What messages call the group."""
        return self._connector.about

    def check(self, ranks: Iterable[int]) -> None:
        """Raise if one of these ranks is no peer, or not any more."""
        for rank in ranks:
            if rank == self._events.rank or not 0 <= rank < self._size:
                raise ValueError(
                    f"{self.about}: rank {rank} is no peer of rank {self._events.rank}: expected another, "
                    f"below {self._size}"
                )
            if rank in self.by_rank and self.by_rank[rank].is_gone:
                raise self.by_rank[rank].handle_loss()

    # --- waiting ---

    def connect(self, ranks: Iterable[int]) -> None:
        """Return when there are links to all these ranks."""
        wanted = [rank for rank in ranks if not self.is_connected(rank)]
        begin = time.monotonic()
        while wanted:
            self._add_links([rank for rank in wanted if rank not in self.by_rank])
            half = [self.by_rank[rank] for rank in wanted if rank in self.by_rank]
            for peer in half:
                self._inbox.read(peer)
            wanted = [rank for rank in wanted if not self.is_connected(rank)]
            for peer in half:
                if peer.rank in wanted and peer.is_gone:
                    raise peer.handle_loss()
            left = begin + self.timeout - time.monotonic()
            if wanted and left <= 0:
                silent = [rank for rank in wanted if not self._connector.is_announced(rank)]
                what = "for their PeerGroup to be made" if silent else "for a first exchange with this rank"
                raise self._timeout_error(silent or wanted, what, begin)
            if wanted:
                self._connector.wait(left, [self.by_rank[rank].link for rank in wanted if rank in self.by_rank])

    def is_connected(self, rank: int) -> bool:
        """Whether there is a link to it, over which its semaphores have come."""
        return rank in self.by_rank and self._inbox.semaphores is not None and self._inbox.semaphores.has_peer(rank)

    def _add_links(self, wanted: Iterable[int]) -> None:
        begin = time.monotonic_ns()
        for link in self._connector.advance(wanted):
            peer = Peer(link, self.about, self._events)
            self.by_rank[link.peer] = peer
            link.start(self._device.index)
            EXPORTS.add_link(link, self._events)
            peer.events.write("peer.ready", link.peer, peer_life=link.life, duration_ns=time.monotonic_ns() - begin)
            self._monitor.add(peer)
            if self._inbox.semaphores is None:
                self._inbox.semaphores = Semaphores(self._size, self._events.rank, self._device.index)
            outbox.send_semaphores(peer, self._inbox.semaphores.words, self._device.index, self.timeout)

    def collect(self, waiting: Collection[Peer], results: dict[int, Result]) -> None:
        """Wait for these peers' parts of the exchange that was sent last to each."""
        begin = time.monotonic()
        while True:
            missing = []
            for peer in waiting:
                came, result = self._inbox.take_result(peer)
                if came:
                    results[peer.rank] = result
                elif peer.is_gone:
                    raise peer.handle_loss()
                else:
                    missing.append(peer)
            if not missing:
                return
            waiting = missing
            left = begin + self.timeout - time.monotonic()
            if left <= 0:
                numbers = ", ".join(str(number) for number in sorted({peer.number for peer in missing}))
                raise self._timeout_error([peer.rank for peer in missing], f"for exchange {numbers}", begin)
            self._sleep(missing, left)

    def _sleep(self, peers: Iterable[Peer], seconds: float) -> None:
        """Wait until one of them has sent something; accept new links."""
        poller = select.poll()
        for peer in peers:
            poller.register(peer.link.fileno(), select.POLLIN | select.POLLOUT * peer.link.has_unsent)
        poller.register(self._connector.listener, select.POLLIN)
        polled = dict(poller.poll(seconds * 1000))
        if self._connector.listener.fileno() in polled:
            self._add_links(())

    def _timeout_error(self, missing: Sequence[int], what: str, begin: float) -> PeerTimeout:
        taken = int((time.monotonic() - begin) * 1e9)
        for rank in missing:
            self._events.write("peer.timeout", rank, duration_ns=taken)
        named = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
        waited = f"within the {self.timeout:g} s that rank {self._events.rank} waited {what}"
        return PeerTimeout(f"{self.about}: {named} did not come {waited}", sorted(missing))

    def read_all(self) -> None:
        """Read all messages that have come, and act on them."""
        for peer in self.by_rank.values():
            if peer.link.ended is None:
                self._inbox.read(peer)
