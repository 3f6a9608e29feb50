"""The ranks of one host that map each other's memory."""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tracehook import _core, groups
from tracehook.agreement import _cloned
from tracehook.errors import PeerError, PeerLost, PeerTensorGone, PeerTimeout
from tracehook.ipc import wire
from tracehook.ipc.exports import EXPORTS, Loan
from tracehook.ipc.imports import IMPORTS
from tracehook.ipc.journal import Journal
from tracehook.ipc.link import Message, close_files
from tracehook.ipc.meeting import Meeting
from tracehook.ipc.peer import Given, Peer
from tracehook.ipc.semaphores import Words
from tracehook.ipc.tensor import PeerTensor
from tracehook.ipc.watch import Watch

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from tracehook.ipc.peer import Result

    Givable = Tensor | Sequence[Tensor] | None

_HOUSEKEEPING = 64  # exchanges that only repeat the last one, between two looks at everything else
_ALL: weakref.WeakSet[PeerGroup] = weakref.WeakSet()
_FORKED = "this process was forked from the one that made it, and cannot use CUDA: use the spawn start method"


class PeerGroup:
    """The ranks of a process group, on one host, as peers that map each other's memory; see docs/ipc.md.

    All ranks make it, in the same order if there are several for one group. That waits for nobody: two ranks meet when
    they first exchange. Any thread may use it; one at a time does. Close it, or leave its ``with`` block, when all is
    copied: until then what peers have of this rank's memory is held.

    Args:
        group: the process group; the default group if None. Its backend does not matter, its store does.
        timeout: seconds that a call waits for peers; ``SYMM_REGISTER_TIMEOUT`` if None.

    Raises:
        RuntimeError: tracehook is not enabled in this process, or does not follow torch's allocator.

    """

    def __init__(self, group: ProcessGroup | None = None, timeout: float | None = None) -> None:
        from tracehook.service import service

        found = groups.facts_of_any(groups.resolve(group)[0])
        torch.cuda.init()
        running = service()
        running._running()
        if not _core.attached():
            raise RuntimeError("tracehook: peers need the hook attached to the allocator (see tracehook.status())")
        self.rank = found.rank
        self.size = found.ranks
        self.device = torch.device("cuda", found.device)
        self._index = found.device
        self._timeout = timeout if timeout is not None else running._settings.timeout
        store = _cloned(found.store)
        born = store.add(f"tracehook/peers/{found.name}/born/{self.rank}", 1)
        self.about = f"peers of group {found.name}"
        name = f"peers:{found.name}/{born}"
        self._key = _core.key_of_name(name)
        self._peers: dict[int, Peer] = {}
        self._words: Words | None = None
        self._lock = threading.RLock()  # one call at a time
        self._ends = threading.Lock()  # table work at the end of a peer; comes after the other
        self._unusable: str | None = None
        self._calls = 0
        self.is_leaving = False
        self._meeting = Meeting(
            store, f"tracehook/peers/{found.name}/{born}", self.about, self._key, self.rank, self._index
        )
        self._watch = Watch(self)
        _ALL.add(self)

    # --- exchanging ---

    def exchange(self, tensors: Mapping[int, Givable], writable: bool = False) -> dict[int, Result]:
        """Give each of these peers a tensor, a list of tensors or nothing, and return what each of them gives.

        Each of them calls this with this rank among its peers, as the n-th such call of both; what else a rank
        exchanges, and in which order it names its peers, does not matter. Memory is mapped at its first exchange and
        found at later ones. Tensors are not copied, and no stream is waited for: what a peer sees is ordered by
        :meth:`signal` and :meth:`wait`, or by the program.

        Args:
            tensors: by the peer's rank in the group. Of one rank's tensors, each peer sees those given to it.
            writable: let the peers write into them.

        Returns:
            By rank, in the shape in which the peer gave it.

        Raises:
            PeerTimeout: peers did not come in time; `missing` has their ranks.
            PeerLost: a peer's process has ended.
            PeerError: something cannot be shared or mapped, here or on the peer's side.

        """
        with self._lock:
            if self._unusable is not None:
                raise self._error(self._unusable)
            peers = self._peers
            self._calls += 1
            for rank, given in tensors.items():
                peer = peers.get(rank)
                if peer is None or not peer.repeats(given, writable):
                    break
            else:
                if self._calls % _HOUSEKEEPING:
                    return self._repeat(tensors)
            return self._exchange(tensors, bool(writable))

    def _repeat(self, tensors: Mapping[int, Givable]) -> dict[int, Result]:
        """Exchange what was exchanged before."""
        peers = [self._peers[rank] for rank in tensors]
        for peer in peers:
            self._send_same(peer)
        results: dict[int, Result] = {}
        waiting = []
        for peer in peers:
            if peer.can_repeat and not peer.arrived and peer.link.take_same(peer.number):
                results[peer.rank] = peer.result
            else:
                waiting.append(peer)
        if waiting:
            self._collect(waiting, results)
            results = {rank: results[rank] for rank in tensors}
        if IMPORTS.is_ending:
            IMPORTS.sweep()
        return results

    def _exchange(self, tensors: Mapping[int, Givable], writable: bool) -> dict[int, Result]:
        self._hear()
        unsent = set(tensors)
        try:
            self._check_ranks(tensors)
            self._connect(tensors)
            changed = [rank for rank in tensors if not self._peers[rank].repeats(tensors[rank], writable)]
            prepared = {rank: self._prepare(tensors[rank], writable) for rank in changed}
            for rank in tensors:
                unsent.discard(rank)
                if rank in prepared:
                    self._send(self._peers[rank], tensors[rank], writable, *prepared[rank])
                else:
                    self._send_same(self._peers[rank])
            EXPORTS.sweep()  # after what is new: a segment that is offered from again need not be closed
            results: dict[int, Result] = {}
            self._collect([self._peers[rank] for rank in tensors], results)
        except BaseException as problem:
            self._refuse(unsent, problem)
            raise
        IMPORTS.sweep()
        return {rank: results[rank] for rank in tensors}

    def _check_ranks(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if rank == self.rank or not 0 <= rank < self.size:
                raise ValueError(
                    f"{self.about}: rank {rank} is no peer of rank {self.rank}: expected another, below {self.size}"
                )
            peer = self._peers.get(rank)
            if peer is not None and (peer.said_bye or peer.link.ended is not None):
                raise self._lost(peer)

    def _prepare(self, given: Givable, writable: bool) -> tuple[wire.Form, list[Loan | None], list[wire.Offer]]:
        if given is None:
            return wire.Form.NOTHING, [], []
        is_list = isinstance(given, list | tuple)
        every: Sequence[Any] = given if is_list else [given]
        try:
            both = [EXPORTS.prepare(tensor, self._index, writable) for tensor in every]
        except PeerError as problem:
            raise PeerError(f"{self.about}: rank {self.rank} cannot share a tensor: {problem}") from None
        return (wire.Form.LIST if is_list else wire.Form.ONE), [one for one, _ in both], [offer for _, offer in both]

    def _send_same(self, peer: Peer) -> None:
        peer.number += 1
        if peer.link.send_same(peer.number):
            return
        try:
            peer.link.send(wire.pack_head(wire.Kind.SAME, peer.number), (), self._timeout)
        except PeerLost:
            raise self._lost(peer) from None

    def _send(
        self,
        peer: Peer,
        given: Givable,
        writable: bool,
        form: wire.Form,
        loans: list[Loan | None],
        offers: list[wire.Offer],
    ) -> None:
        every: Any = [given] if form == wire.Form.ONE else given if form == wire.Form.LIST else []
        peer.number += 1
        peer.given = None
        try:
            begin = 0
            for data, part in wire.exchange_messages(peer.number, form, offers):
                EXPORTS.send(peer.link, data, part, loans[begin : begin + len(part)], self._timeout)
                begin += len(part)
        except PeerLost:
            raise self._lost(peer) from None
        peer.form, peer.writable = form, writable
        peer.given = [Given(tensor, loan) for tensor, loan in zip(every, loans, strict=True)]

    def _refuse(self, ranks: Iterable[int], problem: BaseException) -> None:
        """Tell those who wait for this rank that it gives up: they need not wait for their deadline."""
        lines = str(problem).splitlines()
        text = (lines[0] if lines else type(problem).__name__).encode()[:1000]
        for rank in ranks:
            peer = self._peers.get(rank)
            if peer is not None and not peer.said_bye:
                peer.number += 1
                peer.link.try_send(wire.pack_head(wire.Kind.REFUSED, peer.number) + text)

    # --- waiting for peers ---

    def _collect(self, waiting: list[Peer], results: dict[int, Result]) -> None:
        """Wait for the peers' parts of the exchange that was sent last to each."""
        begin = time.monotonic()
        deadline = begin + self._timeout
        while True:
            missing = []
            for peer in waiting:
                came, result = self._take(peer)
                if came:
                    results[peer.rank] = result
                elif peer.said_bye or peer.link.ended is not None:
                    raise self._lost(peer)
                else:
                    missing.append(peer)
            if not missing:
                return
            waiting = missing
            if not self._sleep(missing, deadline):
                what = f"its tensors (exchange {', '.join(str(peer.number) for peer in missing)})"
                raise self._late([peer.rank for peer in missing], what, begin)

    def _take(self, peer: Peer) -> tuple[bool, Result]:
        """Read up to the peer's part of this exchange, and no further: what it gives lasts until the next call."""
        while True:
            try:
                came, result = peer.take(peer.number)
            except PeerError as problem:
                raise PeerError(f"{self.about}: {problem}") from None
            message = None if came else self._receive(peer)
            if message is None:
                return came, result
            self._process(peer, message)

    def _sleep(self, peers: Iterable[Peer], deadline: float) -> bool:
        """Wait until one of them has said something, or another wants to meet; False once it is too late."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        poller = select.poll()
        for peer in peers:
            poller.register(peer.link.fileno(), select.POLLIN)
        poller.register(self._meeting.listener, select.POLLIN)
        for descriptor, _ in poller.poll(left * 1000):
            if descriptor == self._meeting.listener.fileno():
                self._meet(())
        return True

    def _late(self, missing: Sequence[int], what: str, begin: float) -> PeerTimeout:
        taken = int((time.monotonic() - begin) * 1e9)
        journal = Journal(self._key, self.rank)
        for rank in missing:
            journal.note("peer.timeout", rank, duration_ns=taken)
        named = "rank" if len(missing) == 1 else "ranks"
        ranks = ", ".join(map(str, sorted(missing)))
        return PeerTimeout(
            f"{self.about}: {named} {ranks} did not come within the {self._timeout:g} s that rank {self.rank} waited "
            f"for {what}",
            sorted(missing),
        )

    def _connect(self, ranks: Iterable[int]) -> None:
        """Return when there are links to all these ranks."""
        wanted = [rank for rank in ranks if not self._is_met(rank)]
        if not wanted:
            return
        begin = time.monotonic()
        deadline = begin + self._timeout
        while True:
            self._meet([rank for rank in wanted if rank not in self._peers])
            for rank in wanted:
                if rank in self._peers:
                    self._read(self._peers[rank])
            missing = [rank for rank in wanted if not self._is_met(rank)]
            if not missing:
                return
            for rank in missing:
                if rank in self._peers and self._peers[rank].link.ended is not None:
                    raise self._lost(self._peers[rank])
            left = deadline - time.monotonic()
            if left <= 0:
                silent = [rank for rank in missing if not self._meeting.came(rank)]
                what = "their PeerGroup to be made" if silent else "a first exchange with this rank"
                raise self._late(silent or missing, what, begin)
            self._meeting.wait(left, [self._peers[rank].link for rank in missing if rank in self._peers])

    def _is_met(self, rank: int) -> bool:
        return rank in self._peers and self._words is not None and self._words.knows(rank)

    def _meet(self, wanted: Iterable[int]) -> None:
        begin = time.monotonic_ns()
        for link in self._meeting.look(wanted):
            peer = Peer(link, Journal(self._key, self.rank))
            self._peers[link.peer] = peer
            EXPORTS.join(link, peer.journal)
            peer.journal.note("peer.ready", link.peer, value=link.life, duration_ns=time.monotonic_ns() - begin)
            self._watch.add(peer)
            self._send_words(peer)

    def _send_words(self, peer: Peer) -> None:
        if self._words is None:
            self._words = Words(self.size, self.rank, self._index)
        loan, offer = EXPORTS.prepare(self._words.tensor, self._index, writable=True)
        data = wire.pack_head(wire.Kind.WORDS, count=1, total=1) + wire.pack_offer(offer)
        try:
            EXPORTS.send(peer.link, data, [offer], [loan], self._timeout)
        except PeerLost:
            raise self._lost(peer) from None

    # --- what peers say ---

    def _receive(self, peer: Peer) -> Message | None:
        try:
            return peer.link.receive()
        except PeerLost:
            self.lost(peer)
            return None

    def _read(self, peer: Peer) -> None:
        while (message := self._receive(peer)) is not None:
            self._process(peer, message)

    def _process(self, peer: Peer, message: Message) -> None:
        data, files = message
        link = peer.link
        try:
            head = wire.unpack_head(data)
            number = head.number
            match head.kind:
                case wire.Kind.SAME:
                    lost = PeerError(f"rank {peer.rank} refers to tensors that this rank could not map")
                    peer.arrived.append((number, peer.result if peer.can_repeat else lost))
                case wire.Kind.EXCHANGE:
                    self._take_offers(peer, head, data, files)
                case wire.Kind.REFUSED:
                    text = data[wire.HEAD_BYTES :].decode(errors="replace")
                    peer.arrived.append((number, PeerError(f"rank {peer.rank} gave up: {text}")))
                case wire.Kind.RETIRE:
                    IMPORTS.retire(link, number, self._wanted_back(peer))
                case wire.Kind.RETURNED:
                    EXPORTS.returned(link, number)
                case wire.Kind.CLOSE:
                    IMPORTS.close(link, number, self._wanted_back(peer))
                case wire.Kind.CLOSED:
                    EXPORTS.closed(link, number)
                case wire.Kind.UNOPENED:
                    EXPORTS.unopened(link, number)
                    peer.given = None
                case wire.Kind.WORDS:
                    self._take_words(peer, data, files)
                case wire.Kind.BYE:
                    self._bye(peer)
        except wire.WireError as problem:
            raise PeerError(f"{self.about}: rank {peer.rank} sent what cannot be read: {problem}") from None
        finally:
            close_files(files)

    def _take_offers(self, peer: Peer, head: wire.Head, data: bytes, files: Sequence[int]) -> None:
        coming = iter(files)
        for offer in wire.unpack_offers(data, head.count):
            file = next(coming, None) if offer.flags & wire.Flag.DESCRIPTOR else None
            try:
                borrowed = None
                if offer.nbytes and not self.is_leaving:
                    borrowed = IMPORTS.borrow(peer.link, peer.journal, offer, file, self._index)
                peer.partial.append(PeerTensor(peer.rank, offer, borrowed, self.device))
            except PeerError as problem:
                peer.problem = problem
                peer.partial.append(PeerTensor(peer.rank, offer, None, self.device))
        if len(peer.partial) < head.total:
            return
        tensors, problem = peer.partial, peer.problem
        peer.partial, peer.problem = [], None
        peer.can_repeat = problem is None
        peer.result = tensors[0] if head.form == wire.Form.ONE else tensors if head.form == wire.Form.LIST else None
        peer.arrived.append((head.number, problem if problem is not None else peer.result))

    def _take_words(self, peer: Peer, data: bytes, files: Sequence[int]) -> None:
        (offer,) = wire.unpack_offers(data, 1)
        try:
            borrowed = IMPORTS.borrow(peer.link, peer.journal, offer, files[0] if files else None, self._index)
        except PeerError as problem:
            raise PeerError(f"{self.about}: {problem}") from None
        if self._words is not None:
            self._words.meet(peer.rank, borrowed, offer.offset)

    def _wanted_back(self, peer: Peer) -> PeerTensorGone:
        return PeerTensorGone(f"{self.about}: rank {peer.rank} wants this memory back: exchange a tensor again")

    # --- the ends of peers ---

    def _bye(self, peer: Peer) -> None:
        peer.said_bye = peer.link.said_bye = True
        self._drop(peer, self._end_of(peer))

    def lost(self, peer: Peer) -> None:
        """The peer's process has ended. Called by whoever finds it: the watcher, or a call."""
        with self._ends:
            is_first, peer.is_dropped = not peer.is_dropped, True
        if is_first and not peer.link.said_bye:
            peer.journal.note("peer.lost", peer.rank, value=peer.link.life)
        if is_first:
            EXPORTS.forget(peer.link)
            self._drop(peer, self._end_of(peer))

    def _drop(self, peer: Peer, why: PeerError) -> None:
        if self._words is not None:
            self._words.leave(peer.rank)
        IMPORTS.forget(peer.link, why)

    def _lost(self, peer: Peer) -> PeerLost:
        if not peer.said_bye:
            self.lost(peer)
        return self._end_of(peer)

    def _end_of(self, peer: Peer) -> PeerLost:
        if peer.said_bye or peer.link.said_bye:
            return PeerLost(f"{self.about}: rank {peer.rank} has closed its PeerGroup", peer.rank)
        return PeerLost(f"{self.about}: {peer.link.ended}", peer.rank)

    def rescue(self, peer: Peer) -> bool:
        """Let streams go on that wait for this dead peer; False once there can be none. Called by the watcher."""
        if self._unusable is not None or self._words is None:
            return False
        try:
            self._words.rescue(peer.rank)
        except RuntimeError:
            return False  # the device is in an error; nothing waits any more
        return True

    # --- semaphores ---

    def signal(self, peer: int, channel: int = 0) -> None:
        """Let the peer's next :meth:`wait` on this channel go on, once the work on the current stream is done.

        The work includes what it wrote into the peer's memory. A second signal waits until the first was waited for.
        Can be captured into a graph, after a first exchange or signal outside. A channel goes both ways: the n-th
        signal of one side meets the n-th wait of the other.
        """
        with self._lock:
            self._semaphores(peer).signal(peer, channel)

    def wait(self, peer: int, channel: int = 0) -> None:
        """Let what comes on the current stream wait for the peer's next :meth:`signal` on this channel."""
        with self._lock:
            self._semaphores(peer).wait(peer, channel)

    def put(self, there: PeerTensor, source: Tensor, channel: int = 0) -> None:
        """Wait for the peer's signal that its tensor may be written, copy `source` into it, and signal that.

        The peer signals first and then waits. Everything is ordered on the current streams.
        """
        self.wait(there.peer, channel)
        there.put(source)
        self.signal(there.peer, channel)

    def get(self, there: PeerTensor, out: Tensor | None = None, channel: int = 0) -> Tensor:
        """Wait for the peer's signal that its tensor may be read, copy it here, and signal that it was read.

        The peer signals first, and waits before it writes the tensor again. Returns `out`, or a new tensor.
        """
        self.wait(there.peer, channel)
        copied = there.get(out)
        self.signal(there.peer, channel)
        return copied

    def _semaphores(self, rank: int) -> Words:
        if self._unusable is not None:
            raise self._error(self._unusable)
        peer = self._peers.get(rank)
        if peer is None or peer.said_bye or peer.link.ended is not None or not self._is_met(rank):
            self._check_ranks([rank])
            self._connect([rank])
        assert self._words is not None
        return self._words

    # --- the end ---

    def release(self, tensor: Tensor) -> bool:
        """Ask the peers for a tensor's memory now, though it is still used here; False if no peer has it.

        Without this they are asked when the last tensor on it is gone here. It is held until they have let go.
        """
        with self._lock:
            self._check_usable()
            released = EXPORTS.release(tensor)
            self._housekeep()
            return released

    def poll(self) -> None:
        """Do what calls do between exchanges: hear what peers want back, ask for what is not used here any more."""
        with self._lock:
            self._check_usable()
            self._housekeep()

    def _housekeep(self) -> None:
        self._hear()
        EXPORTS.sweep()
        IMPORTS.sweep()

    def _hear(self) -> None:
        for peer in self._peers.values():
            if peer.link.ended is None:
                self._read(peer)

    def close(self) -> None:
        """Unmap what this rank has of its peers, tell them, and let go of what they have of this rank once they have.

        Returns when nothing is mapped here any more, but for what torch tensors still lie on. What peers still have
        is held on, in the background, until they let go or end. Idempotent.
        """
        with self._lock:
            if self._unusable is not None:
                return
            self._unusable = "it was closed"
            links = [peer.link for peer in self._peers.values()]
            for peer in self._peers.values():
                if peer.link.ended is None:
                    peer.link.try_send(wire.pack_head(wire.Kind.BYE))
                self._drop(peer, PeerTensorGone(f"{self.about}: it was closed"))
            self._meeting.close()
            self._words = None
            self.is_leaving = True
        self._watch.leave()
        deadline = time.monotonic() + self._timeout
        while IMPORTS.outstanding(links) and not IMPORTS.leased(links) and time.monotonic() < deadline:
            IMPORTS.sweep()
            IMPORTS.settled.wait(0.05)
            IMPORTS.settled.clear()

    def farewell(self, peer: Peer) -> bool:
        """After close(): hear what the peer gave back; True when nothing is left. Called by the watcher."""
        with self._lock:
            if peer.link.ended is None:
                self._read(peer)
            EXPORTS.sweep()
            IMPORTS.sweep()
            done = not IMPORTS.outstanding([peer.link])
            if peer.link.ended is None:
                done = done and peer.said_bye and not EXPORTS.outstanding(peer.link)
            if done:
                EXPORTS.forget(peer.link)
                peer.link.close()
            return done

    def __enter__(self) -> PeerGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise self._error(self._unusable)

    def _error(self, why: str) -> PeerError:
        return PeerError(f"{self.about}: {why}")

    def say_bye(self) -> None:
        """At interpreter exit: peers shall know that this is no crash. Makes no call into CUDA."""
        if self._unusable is None:
            for peer in list(self._peers.values()):
                peer.link.try_send(wire.pack_head(wire.Kind.BYE))

    def after_fork_in_child(self) -> None:
        """Let go of the parent's sockets, so that its peers see *its* end; and never use the rest."""
        self._unusable = _FORKED
        self._lock = threading.RLock()
        self._meeting.close()
        for peer in self._peers.values():
            peer.link.sock.close()
        self._watch.after_fork_in_child()


def _after_fork_in_child() -> None:
    for group in list(_ALL):
        group.after_fork_in_child()
    IMPORTS.after_fork_in_child(_FORKED)


def _at_exit() -> None:
    for group in list(_ALL):
        group.say_bye()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
