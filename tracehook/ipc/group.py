"""The ranks of one host that map each other's memory."""

from __future__ import annotations

import atexit
import os
import select
import threading
import weakref
from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from tracehook import _core
from tracehook.errors import PeerError, PeerTensorGone
from tracehook.hook import background, groups
from tracehook.hook.job import attempt
from tracehook.ipc import outbox, wire
from tracehook.ipc.connector import Connector
from tracehook.ipc.counts import CallCounts
from tracehook.ipc.events import PeerEvents
from tracehook.ipc.inbox import Inbox
from tracehook.ipc.peer import Peer, Result, Shareable
from tracehook.ipc.peer_table import PeerTable
from tracehook.ipc.semaphores import Semaphores
from tracehook.ipc.tables import EXPORTS, IMPORTS
from tracehook.ipc.tensor import PeerTensor, expect
from tracehook.log import clock, threads

_GROUPS: weakref.WeakSet[PeerGroup] = weakref.WeakSet()
_UNBLOCK_PAUSE = (0.002, 0.1)  # seconds until streams that wait for a dead peer are unblocked again: first, at most
_NEVER = 1e6
_CLOSE_INTERVAL = 0.02  # seconds between two looks whether tensors on a peer's memory still live, after close()
_FORKED = "this process was forked from the one that made it, and cannot use CUDA: use the spawn start method"


class PeerGroup:
    """The ranks of a process group, on one host, as peers that map each other's memory; see docs/ipc.md.

    All ranks make it, in the same order if there are several for one group. That waits for nobody: two ranks connect
    when they first exchange. Any thread may use it, one thread at a time. Close it, or leave its ``with`` block, after
    the last copy: until then this rank holds the memory that peers have of it.

    Attributes: ``rank`` and ``size`` of the group, and the CUDA ``device`` of this rank.

    Args:
        group: the process group; the default group if None. Its backend does not matter, its store does.
        timeout: seconds that a call waits for peers; ``SYMM_REGISTER_TIMEOUT`` if None.

    Raises:
        ValueError: `timeout` is no number of seconds.
        RuntimeError: tracehook is not enabled in this process, or does not follow torch's allocator.

    """

    def __init__(self, group: ProcessGroup | None = None, timeout: float | None = None) -> None:
        from tracehook.hook.service import service

        if timeout is not None and not (isinstance(timeout, Real) and timeout >= 0):
            raise ValueError(f"tracehook: timeout is {timeout!r}: expected seconds, such as 60")
        own = groups.resolve_one(group)
        if own is None:
            raise ValueError("tracehook: this rank is no member of the group: only its members make a PeerGroup")
        found = groups.facts_of_any(own)
        torch.cuda.init()
        running = service()
        running.required()
        if not _core.attached():
            raise RuntimeError("tracehook: peers need the hook attached to the allocator (see tracehook.status())")
        self.rank = found.rank
        self.size = found.ranks
        self.device = torch.device("cuda", found.device)
        self.about = f"peers of group {found.name}"
        self._lock = threading.RLock()  # one call at a time
        self._unusable: str | None = None
        self.is_closing = False
        place, name = found.store, f"{attempt()}{found.name}"
        if key_of_split := groups.key_of_split(own):
            place, name = groups.below(place), f"{key_of_split:016x}"
        store = groups.cloned_store(place)
        born = store.add(f"tracehook/peers/{name}/born/{self.rank}", 1)
        key = _core.key_of_name(f"peers:{name}/{born}")
        self._connector = Connector(store, f"tracehook/peers/{name}/{born}", self.about, key, self.rank, found.device)
        self._inbox = Inbox(self.about, self.device)
        self._monitor = PeerMonitor(self)
        self._calls = CallCounts(key, self.rank, self.size)
        events = PeerEvents(key, self.rank, self._calls)
        self._peers = PeerTable(self._connector, self._inbox, self._monitor.add, events, self.size, self.device)
        self._peers.timeout = timeout if timeout is not None else running.settings.timeout
        _GROUPS.add(self)

    def __repr__(self) -> str:
        return f"<PeerGroup: {self.about}, rank {self.rank} of {self.size}, {self.device}>"

    # --- exchanging ---

    def exchange(self, tensors: Mapping[int, Shareable], writable: bool = False) -> dict[int, Result]:
        """Give each of these peers a tensor, a list of tensors or nothing, and return what each of them gives.

        Each of these peers calls this with this rank among its own peers. The n-th such call of one rank meets the n-th
        of the other. Exchanges with other ranks, and the order of the peers in a call, do not matter. The first
        exchange of some memory maps it, and later ones find the mapping. It copies no tensor and waits for no stream:
        :meth:`signal` and :meth:`wait`, or the program, order the two sides' work.

        Args:
            tensors: by the peer's rank in the group: CUDA tensors of this rank's device, of any strides and up to eight
                dimensions. Each peer sees only the tensors given to it.
            writable: let the peers write into them.

        Returns:
            PeerTensors by the peer's rank: one, a list, or None, as that peer gave them.

        Raises:
            PeerTimeout: peers did not come in time; `missing` has their ranks.
            PeerLost: a peer's process has ended.
            PeerError: this rank or a peer cannot share or map some memory.

        """
        expect(Mapping, tensors)
        with self._lock:
            if self._unusable is not None:
                raise self._error()
            return self._exchange(tensors, bool(writable))

    def _exchange(self, tensors: Mapping[int, Shareable], writable: bool) -> dict[int, Result]:
        table = self._peers
        table.read_all()
        unsent = set(tensors)
        try:
            table.check(tensors)
            ranks = wire.all_of({self.rank, *tensors})
            table.connect(tensors)
            peers = {rank: table.by_rank[rank] for rank in tensors}
            try:
                outgoing = {rank: outbox.pack(given, self.device.index, writable) for rank, given in tensors.items()}
            except PeerError as problem:
                raise problem.within(f"{self.about}: rank {self.rank} cannot share a tensor") from None
            for rank, peer in peers.items():
                unsent.discard(rank)
                outbox.send(peer, outgoing[rank], ranks, table.timeout)
            EXPORTS.recall_unused()  # after what is new: a segment that is offered from again need not be unmapped
            results = table.collect(list(peers.values()), ranks)
        except BaseException as problem:
            for rank in unsent & table.by_rank.keys():
                table.by_rank[rank].number += 1
            EXPORTS.drop_unlent()
            outbox.refuse([table.by_rank[rank] for rank in tensors if rank in table.by_rank], self.rank, problem)
            raise
        IMPORTS.return_unused()
        return {rank: results[rank] for rank in tensors}

    # --- semaphores ---

    def signal(self, peer: int, channel: int = 0) -> None:
        """Let the peer's next :meth:`wait` on this channel go on, once the work on the current stream is done.

        That work includes writes into the peer's memory. A second signal waits, on its stream, until the peer has
        waited for the first. A program can capture it into a graph, after a first exchange or signal outside. A channel
        goes both ways: the n-th signal of one side meets the n-th wait of the other.

        Args:
            peer: the peer's rank in the group.
            channel: one of 64, from 0.

        """
        with self._lock:
            self._semaphores(peer).signal(peer, channel)

    def wait(self, peer: int, channel: int = 0) -> None:
        """Let later work on the current stream wait for the peer's next :meth:`signal` on this channel.

        The host does not wait. Arguments: see :meth:`signal`.
        """
        with self._lock:
            self._semaphores(peer).wait(peer, channel)

    def put(self, there: PeerTensor, source: Tensor, channel: int = 0) -> None:
        """Wait for the peer's signal that this rank may write, copy `source` into the peer's tensor, and signal.

        The peer signals first and then waits. The current streams order everything. `source` has a shape that
        ``Tensor.copy_`` takes. A wrong argument raises before the wait, so the peer's signal is there for another call.
        """
        expect(PeerTensor, there)
        self._copy(there.peer, channel, *there.for_writing(source))

    def get(self, there: PeerTensor, out: Tensor | None = None, channel: int = 0) -> Tensor:
        """Wait for the peer's signal that this rank may read, copy the peer's tensor here, and signal.

        The peer signals first, and waits before it writes the tensor again. Returns `out`, or a new tensor of the same
        shape and type. :meth:`PeerTensor.get <tracehook.ipc.PeerTensor.get>` copies without either signal.
        """
        expect(PeerTensor, there)
        return self._copy(there.peer, channel, *there.for_reading(out))

    def _copy(self, peer: int, channel: int, target: Tensor, source: Tensor) -> Tensor:
        self.wait(peer, channel)
        target.copy_(source)
        self.signal(peer, channel)
        return target

    def _semaphores(self, rank: int) -> Semaphores:
        if self._unusable is not None:
            raise self._error()
        table = self._peers
        peer = table.by_rank.get(rank)
        if peer is None or peer.is_gone or not table.is_connected(rank):
            table.check([rank])
            table.connect([rank])
        assert self._inbox.semaphores is not None
        return self._inbox.semaphores

    def unblock_streams(self, peer: Peer) -> bool:
        """Let streams go on that wait for this dead peer; False once there can be none. Called by the monitor."""
        semaphores = self._inbox.semaphores
        if self._unusable is not None or semaphores is None:
            return False
        try:
            semaphores.set_all(peer.rank)
        except RuntimeError:
            return False  # the device is in an error; nothing waits any more
        return True

    # --- the end ---

    def release(self, tensor: Tensor) -> bool:
        """Ask the peers to return a tensor's memory now, although this rank still uses it; False if no peer has it.

        Without this call, this rank asks its peers when its last tensor on the memory is gone; for memory of a scope,
        when the group is closed. It holds the memory until they have returned it.
        """
        expect(Tensor, tensor)
        with self._lock:
            if self._unusable is not None:
                raise self._error()
            released = EXPORTS.recall(tensor)
            self._housekeep()
            return released

    def poll(self) -> None:
        """Read requests of peers, and ask peers for memory that this rank no longer uses. Every call does so too."""
        with self._lock:
            if self._unusable is not None:
                raise self._error()
            self._housekeep()

    def _housekeep(self) -> None:
        self._peers.read_all()
        EXPORTS.recall_unused()
        IMPORTS.return_unused()

    def close(self) -> None:
        """Unmap the peers' memory and tell them. A second call does nothing, unless the first one was interrupted.

        Returns when this rank has unmapped all memory, except memory on which torch tensors still lie. It holds its own
        memory, in the background, until the peers have unmapped it or ended.
        """
        with self._lock:
            if self.is_closing:
                return
            self._unusable = "it was closed"
            links = [peer.link for peer in self._peers.by_rank.values()]
            for link in links:
                link.is_closing = True
                link.try_send(wire.pack_head(wire.Kind.BYE))
                IMPORTS.mark_unwanted(link, PeerTensorGone(self._error().text))
            self._connector.close()
            self._calls.end()
            self._inbox.semaphores = None
            self._inbox.is_closed = self.is_closing = True
        self._monitor.stop()
        deadline = clock.monotonic() + self._peers.timeout
        while IMPORTS.has_mapped(links) and not IMPORTS.has_leases(links) and clock.monotonic() < deadline:
            IMPORTS.progress.clear()
            IMPORTS.return_unused()
            IMPORTS.progress.wait(0.05)

    def close_link(self, peer: Peer) -> bool:
        """After close(): read what the peer sends; close its link when nothing is left, True then. For the monitor."""
        with self._lock:
            link = peer.link
            self._inbox.read(peer)
            EXPORTS.recall_unused()
            IMPORTS.return_unused()
            done = not IMPORTS.has_mapped([link])
            if link.ended is None:
                done = done and link.peer_closed and not EXPORTS.is_mapped_by(link)
            if done:
                EXPORTS.drop_link(link)
                link.close()
            return done

    def __enter__(self) -> PeerGroup:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _error(self) -> PeerError:
        return PeerError(f"{self.about}: {self._unusable}", advice="Make another PeerGroup")

    def send_bye(self) -> None:
        """At interpreter exit: peers shall know that this is no crash. Makes no call into CUDA."""
        if self._unusable is None:
            for peer in list(self._peers.by_rank.values()):
                peer.link.try_send(wire.pack_head(wire.Kind.BYE))

    def after_fork_in_child(self) -> None:
        """Close the parent's sockets, so that its peers see *its* end; and never use the rest."""
        self._unusable = _FORKED
        self.is_closing = True
        self._lock = threading.RLock()
        self._connector.close()
        for peer in self._peers.by_rank.values():
            peer.link.sock.close()
        self._monitor.after_fork_in_child()


class PeerMonitor:
    """A thread for each group: it sleeps until a peer's process ends, and closes the links of a closed group.

    It holds no lock of the group's when it asks the group.
    """

    def __init__(self, group: PeerGroup) -> None:
        self._group = group
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # table work only
        self._peers: list[Peer] = []
        self._thread: threads.Thread | None = None
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
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Let the thread end when all links of the group, which was closed, are closed."""
        if self._thread is None:
            self._close_wake()
        else:
            self.wake()

    def _close_wake(self) -> None:
        with self._lock:
            wake, self._wake = self._wake, -1  # the system gives the number to the next file of the program
        if wake >= 0:
            os.close(wake)

    def end_soon(self) -> None:
        """At exit: watch no peer any more."""
        self._is_over = True
        self.wake()

    def after_fork_in_child(self) -> None:
        """Close what is the parent's: there is no thread here."""
        self._lock = threading.Lock()
        self._close_wake()

    def _run(self) -> None:
        dead: dict[Peer, float] = {}  # seconds until its streams are unblocked again
        while not self._is_over:
            closing = self._group.is_closing
            with self._lock:
                peers = [peer for peer in self._peers if closing or peer not in dead]
            if closing:
                peers = [peer for peer in peers if not self._group.close_link(peer)]
                if not peers:
                    self._close_wake()
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


def _after_fork_in_child() -> None:
    for group in list(_GROUPS):
        group.after_fork_in_child()
    IMPORTS.after_fork_in_child(_FORKED)


def _at_exit() -> None:
    for group in list(_GROUPS):
        group.send_bye()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
