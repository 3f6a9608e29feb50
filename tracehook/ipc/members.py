"""The peers of one rank in one group: met when first wanted, waited for with a deadline, seen off at the end."""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tracehook.errors import PeerTimeout
from tracehook.ipc import outbox
from tracehook.ipc.exports import EXPORTS
from tracehook.ipc.journal import Journal
from tracehook.ipc.meeting import Meeting
from tracehook.ipc.peer import Peer
from tracehook.ipc.semaphores import Words

if TYPE_CHECKING:
    import torch

    from tracehook.ipc.inbox import Inbox
    from tracehook.ipc.peer import Result
    from tracehook.ipc.watch import Watch


class Members:
    """Belongs to the thread that holds the group's lock."""

    def __init__(
        self, meeting: Meeting, inbox: Inbox, watch: Watch, journal: Journal, size: int, device: torch.device
    ) -> None:
        self.met: dict[int, Peer] = {}
        self.timeout = 0.0  # seconds that a call waits
        self._meeting = meeting
        self._inbox = inbox
        self._watch = watch
        self._journal = journal
        self._size = size
        self._device = device

    @property
    def about(self) -> str:
        """What messages call the group."""
        return self._meeting.about

    def check(self, ranks: Iterable[int]) -> None:
        """Raise if one of these ranks is no peer, or not any more."""
        for rank in ranks:
            if rank == self._journal.rank or not 0 <= rank < self._size:
                raise ValueError(
                    f"{self.about}: rank {rank} is no peer of rank {self._journal.rank}: expected another, "
                    f"below {self._size}"
                )
            if rank in self.met and self.met[rank].is_gone:
                raise self.met[rank].lost()

    # --- waiting ---

    def connect(self, ranks: Iterable[int]) -> None:
        """Return when there are links to all these ranks."""
        wanted = [rank for rank in ranks if not self.is_met(rank)]
        begin = time.monotonic()
        while wanted:
            self._meet([rank for rank in wanted if rank not in self.met])
            half = [self.met[rank] for rank in wanted if rank in self.met]
            for peer in half:
                self._inbox.read(peer)
            wanted = [rank for rank in wanted if not self.is_met(rank)]
            for peer in half:
                if peer.rank in wanted and peer.is_gone:
                    raise peer.lost()
            left = begin + self.timeout - time.monotonic()
            if wanted and left <= 0:
                silent = [rank for rank in wanted if not self._meeting.came(rank)]
                what = "for their PeerGroup to be made" if silent else "for a first exchange with this rank"
                raise self._late(silent or wanted, what, begin)
            if wanted:
                self._meeting.wait(left, [self.met[rank].link for rank in wanted if rank in self.met])

    def is_met(self, rank: int) -> bool:
        """Whether there is a link to it, over which its semaphores have come."""
        return rank in self.met and self._inbox.words is not None and self._inbox.words.knows(rank)

    def _meet(self, wanted: Iterable[int]) -> None:
        begin = time.monotonic_ns()
        for link in self._meeting.look(wanted):
            peer = Peer(link, self.about, self._journal)
            self.met[link.peer] = peer
            link.open(self._device.index)
            EXPORTS.join(link, self._journal)
            peer.journal.note("peer.ready", link.peer, value=link.life, duration_ns=time.monotonic_ns() - begin)
            self._watch.add(peer)
            if self._inbox.words is None:
                self._inbox.words = Words(self._size, self._journal.rank, self._device.index)
            outbox.send_words(peer, self._inbox.words.tensor, self._device.index, self.timeout)

    def collect(self, waiting: Collection[Peer], results: dict[int, Result]) -> None:
        """Wait for these peers' parts of the exchange that was sent last to each."""
        begin = time.monotonic()
        while True:
            missing = []
            for peer in waiting:
                came, result = self._inbox.take(peer)
                if came:
                    results[peer.rank] = result
                elif peer.is_gone:
                    raise peer.lost()
                else:
                    missing.append(peer)
            if not missing:
                return
            waiting = missing
            left = begin + self.timeout - time.monotonic()
            if left <= 0:
                numbers = ", ".join(str(number) for number in sorted({peer.number for peer in missing}))
                raise self._late([peer.rank for peer in missing], f"for exchange {numbers}", begin)
            self._sleep(missing, left)

    def _sleep(self, peers: Iterable[Peer], seconds: float) -> None:
        """Wait until one of them has said something; let in who wants to meet."""
        poller = select.poll()
        for peer in peers:
            poller.register(peer.link.fileno(), select.POLLIN)
        poller.register(self._meeting.listener, select.POLLIN)
        try:
            for peer in peers:
                peer.link.rest(True)
            said = any(peer.has_said_same for peer in peers)  # before it could know that it must send a message
            events = dict(poller.poll(0 if said else seconds * 1000))
        finally:
            for peer in peers:
                peer.link.rest(False)
        if self._meeting.listener.fileno() in events:
            self._meet(())

    def _late(self, missing: Sequence[int], what: str, begin: float) -> PeerTimeout:
        taken = int((time.monotonic() - begin) * 1e9)
        for rank in missing:
            self._journal.note("peer.timeout", rank, duration_ns=taken)
        named = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
        waited = f"within the {self.timeout:g} s that rank {self._journal.rank} waited {what}"
        return PeerTimeout(f"{self.about}: {named} did not come {waited}", sorted(missing))

    def hear(self) -> None:
        """Read what all of them have said."""
        for peer in self.met.values():
            if peer.link.ended is None:
                self._inbox.read(peer)
