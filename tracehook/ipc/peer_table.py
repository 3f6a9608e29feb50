"""The peers of one rank in one group: connected when first wanted, and waited for with a deadline."""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Real

import torch

from tracehook.errors import PeerError, PeerTimeout
from tracehook.ipc import outbox
from tracehook.ipc.connector import Connector
from tracehook.ipc.events import PeerEvents, own_life
from tracehook.ipc.inbox import Inbox
from tracehook.ipc.peer import Peer, Result
from tracehook.ipc.semaphores import Semaphores
from tracehook.ipc.tables import EXPORTS
from tracehook.ipc.wire import Reached
from tracehook.log import clock


class PeerTable:
    """Belongs to the thread that holds the group's lock."""

    def __init__(
        self,
        connector: Connector,
        inbox: Inbox,
        watch: Callable[[Peer], None],
        events: PeerEvents,
        size: int,
        device: torch.device,
    ) -> None:
        self.by_rank: dict[int, Peer] = {}
        self.timeout = 0.0  # seconds that a call waits
        self._connector = connector
        self._inbox = inbox
        self._watch = watch  # has the monitor watch this peer, too
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
            if not isinstance(rank, Real) or rank == self._events.rank or not 0 <= rank < self._size:
                raise ValueError(
                    f"{self.about}: rank {rank} is no peer of rank {self._events.rank}: expected another, "
                    f"below {self._size}"
                )
            if rank in self.by_rank and self.by_rank[rank].is_gone:
                raise self.by_rank[rank].handle_loss()

    # --- waiting ---

    def connect(self, ranks: Iterable[int]) -> None:
        """Return when there are links to all these ranks, and both sides have each other's semaphores.

        Raises what is wrong with one of them only when the others are connected, because they have to hear of it.
        """
        wanted = [rank for rank in ranks if not self.is_connected(rank) or self.by_rank[rank].lacks_semaphores]
        begin = clock.monotonic()
        problems: list[PeerError] = []
        while wanted:
            self._add_links([rank for rank in wanted if rank not in self.by_rank])
            half = [self.by_rank[rank] for rank in wanted if rank in self.by_rank]
            for peer in half:
                self._inbox.read(peer)
                problem = self._give_semaphores(peer) or peer.obstacle()
                problems += [problem] if problem is not None else []
                if problem is not None or self.is_connected(peer.rank):
                    wanted.remove(peer.rank)
                elif peer.is_gone:
                    raise peer.handle_loss()
            left = begin + self.timeout - clock.monotonic()
            if wanted and left <= 0 and not problems:
                silent = [rank for rank in wanted if not self._connector.is_announced(rank)]
                what = "for their PeerGroup to be made" if silent else "for a first exchange with this rank"
                raise self._timeout_error(silent or wanted, what, begin)
            if left <= 0:
                break
            if wanted:
                self._connector.wait(left, [self.by_rank[rank].link for rank in wanted if rank in self.by_rank])
        if problems:
            raise problems[0]

    def is_connected(self, rank: int) -> bool:
        """Whether there is a link to it, over which its semaphores have come."""
        return self._inbox.semaphores is not None and rank in self.by_rank and rank in self._inbox.words_of_peers

    def _add_links(self, wanted: Iterable[int]) -> None:
        begin = clock.monotonic_ns()
        for link in self._connector.advance(wanted):
            if link.life == own_life():
                text = f"{self.about}: rank {link.peer} is a thread of this process, where CUDA opens no such handles"
                raise PeerError(text, advice="Hand the thread the tensor itself")
            peer = Peer(link, self.about, self._events)
            self.by_rank[link.peer] = peer
            link.start(self._device.index)
            EXPORTS.add_link(link, self._events)
            peer.events.write("peer.ready", link.peer, peer_life=link.life, duration_ns=clock.monotonic_ns() - begin)
            self._watch(peer)
            self._give_semaphores(peer)

    def _give_semaphores(self, peer: Peer) -> PeerError | None:
        """Tell a peer where this rank's semaphores are, unless it knows; return why that cannot be."""
        if peer.lacks_semaphores:
            try:
                if self._inbox.semaphores is None:
                    self._inbox.semaphores = Semaphores(
                        self._size,
                        self._events.rank,
                        self._device.index,
                        self._inbox.words_of_peers,
                        self._events.calls,
                    )
                outbox.send_semaphores(peer, self._inbox.semaphores.words, self._device.index, self.timeout)
            except PeerError as problem:
                return problem
            except RuntimeError as problem:
                return PeerError(f"{self.about}: rank {self._events.rank} cannot make its semaphores: {problem}")
            peer.lacks_semaphores = False
        return None

    def collect(self, peers: Collection[Peer], ranks: int) -> dict[int, Result]:
        """Return what these peers give in the exchange that was sent last to each, once they have this rank's parts.

        If all of them have made one call with the same ranks (`ranks`: see :func:`wire.all_of`), then once all have all
        parts: whoever lacks one says so, and all raise. Else some wait for other ranks, perhaps for later calls of
        this one.
        """
        results = self._await(peers, Reached.GIVEN)
        is_one_call = all(peer.ranks == ranks for peer in peers)
        for peer in peers:
            outbox.confirm(peer, Reached.ALL)
        self._await(peers, Reached.ALL if is_one_call else Reached.PAIR)
        return results

    def _await(self, waiting: Collection[Peer], step: Reached) -> dict[int, Result]:
        begin = clock.monotonic()
        results: dict[int, Result] = {}
        while True:
            came, missing = [], []
            for peer in waiting:
                is_there, result = self._inbox.take(peer, step)
                if is_there:
                    results[peer.rank] = result
                    came.append(peer)
                elif peer.is_gone:
                    raise peer.handle_loss()
                else:
                    missing.append(peer)
            if not missing:
                return results
            for peer in came if step == Reached.GIVEN else ():
                outbox.confirm(peer, Reached.PAIR)
            waiting = missing
            left = begin + self.timeout - clock.monotonic()
            if left <= 0:
                numbers = ", ".join(str(number) for number in sorted({peer.number for peer in missing}))
                what = f"for {'the end of ' if step != Reached.GIVEN else ''}exchange {numbers}"
                raise self._timeout_error([peer.rank for peer in missing], what, begin)
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
        taken = int((clock.monotonic() - begin) * 1e9)
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
