"""What this process has mapped of its peers' memory: each export once, whoever uses it.

A mapping lasts while its owner wants it to and, after that, while any torch tensor lies on it (a lease). Before it is
unmapped, or a loan of it is returned, the device's work is waited for. That wait is on a thread of its own: the work
may itself wait for a peer that waits for this rank's next call.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook import _core
from tracehook._core import ipc as native
from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.ipc import wire
from tracehook.ipc.journal import Journal

if TYPE_CHECKING:
    from tracehook.ipc.link import Link
    from tracehook.ipc.tensor import PeerTensor


class Mapped:
    """One export of a peer process, mapped here."""

    def __init__(self, key: tuple[int, int], offer: wire.Offer, mapping: Any) -> None:
        self.key = key  # life of the peer's process, number of the export
        self.mapping = mapping
        self.segment = offer.segment
        self.is_pool = bool(offer.flags & wire.Flag.POOL)
        self.handle_kind = offer.handle_kind
        self.borrowed: dict[tuple[Link, int], Borrowed] = {}
        self.links: dict[Link, Journal] = {}  # over which it came, and is still wanted
        self.closing: dict[Link, Journal] = {}  # over which its owner wants to hear that it is closed


class Borrowed:
    """One loan of a peer, as one group has it: what its PeerTensors share."""

    def __init__(self, mapped: Mapped, number: int, link: Link) -> None:
        self.mapped = mapped
        self.number = number
        self.link = link
        self.leases = native.Leases()
        self.was_used = False
        self.gone: PeerError | None = None  # why it must not be used any more
        self.tensors: list[weakref.ref[PeerTensor]] = []

    def address(self, offset: int) -> int:
        """Return where a byte of the peer's segment is here."""
        return int(self.mapped.mapping.address) + offset

    def lend(self, offset: int, nbytes: int) -> Any:
        """Return a DLPack capsule of bytes. Raises :class:`PeerTensorGone`."""
        with IMPORTS.lock:
            if self.gone is not None:
                raise self.refusal()
            self.was_used = True
            return self.leases.lend(self.address(offset), nbytes, self.mapped.mapping.device)

    def refusal(self) -> PeerError:
        """Return a new exception of why it must not be used."""
        assert self.gone is not None
        text = str(self.gone)
        return PeerLost(text, self.link.peer) if isinstance(self.gone, PeerLost) else PeerTensorGone(text)

    def end(self, why: PeerError) -> None:
        """Let no new tensor be made on it, and drop those that only our own objects hold."""
        self.gone = self.gone or why
        for reference in self.tensors:
            tensor = reference()
            if tensor is not None:
                tensor.let_go()
        self.tensors.clear()


class _Work(NamedTuple):
    """What follows once the device has finished what it was given."""

    device: int
    returned: list[Borrowed]
    closed: list[Mapped]


class Imports:
    """Of one process. Any thread; its lock is taken with a group's lock held or none, and not held during waits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._mapped: dict[tuple[int, int], Mapped] = {}
        self._ending: dict[Borrowed, bool] = {}  # asked for, not yet returned; whether its owner wants to hear of it
        self._unmapping: list[Mapped] = []  # wanted by nobody, not yet unmapped
        self._busy: set[Any] = set()  # handed to the thread
        self._work: queue.SimpleQueue[_Work] | None = None
        self.settled = threading.Event()  # set when something was returned or unmapped

    @property
    def is_ending(self) -> bool:
        """Whether there is something for :meth:`sweep`."""
        return bool(self._ending or self._unmapping)

    # --- taking what peers offer ---

    def borrow(self, link: Link, journal: Journal, offer: wire.Offer, device: int) -> Borrowed:
        """Return the loan of an offer; maps its segment if that is not mapped yet.

        Raises :class:`PeerError`, after telling the owner that its segment is not mapped here.
        """
        with self.lock:
            key = (link.life, offer.export)
            mapped = self._mapped.get(key)
            if mapped is None or mapped in self._unmapping:
                mapped = self._open(link, journal, offer, device)
                self._mapped[key] = mapped
            else:
                link.arrivals.drop(offer.export)
            if offer.flags & wire.Flag.WRITABLE and not mapped.mapping.writable:
                mapped.mapping.allow_writes()
            mapped.links[link] = journal
            found = mapped.borrowed.get((link, offer.loan))
            if found is None:
                found = mapped.borrowed[link, offer.loan] = Borrowed(mapped, offer.loan, link)
            return found

    def _open(self, link: Link, journal: Journal, offer: wire.Offer, device: int) -> Mapped:
        begin = time.monotonic_ns()
        fields = {"segment": offer.segment, "pool": bool(offer.flags & wire.Flag.POOL), "generation": offer.export}
        fields |= {"handle": offer.handle_kind, "size": offer.size, "device": device, "value": link.life}
        try:
            if offer.handle_kind == wire.HandleKind.RUNTIME:
                mapping = native.open_runtime(offer.handle, offer.size, device)
            else:
                mapping = link.arrivals.open(offer)
        except RuntimeError as problem:
            link.try_send(wire.pack_head(wire.Kind.UNOPENED, offer.export))
            taken = time.monotonic_ns() - begin
            journal.note("ipc.open", link.peer, **fields, duration_ns=taken, result=getattr(problem, "code", -1))
            raise PeerError(f"a segment of rank {link.peer} ({offer.size} bytes) cannot be mapped: {problem}") from None
        taken = time.monotonic_ns() - begin
        journal.note("ipc.open", link.peer, **fields, address=mapping.address, duration_ns=taken)
        return Mapped((link.life, offer.export), offer, mapping)

    # --- what owners ask for ---

    def retire(self, link: Link, number: int, why: PeerError) -> None:
        """The owner wants this loan back."""
        with self.lock:
            for mapped in self._mapped.values():
                found = mapped.borrowed.get((link, number))
                if found is not None:
                    found.end(why)
                    self._ending[found] = True
                    return
        link.try_send(wire.pack_head(wire.Kind.RETURNED, number))

    def close(self, link: Link, number: int, why: PeerError) -> None:
        """The owner wants this export unmapped."""
        with self.lock:
            mapped = self._mapped.get((link.life, number))
            if mapped is not None and link in mapped.links:
                self._leave(mapped, link, why)
                return
        link.try_send(wire.pack_head(wire.Kind.CLOSED, number))

    def forget(self, link: Link, why: PeerError) -> None:
        """Nothing comes over this link any more, and what came is not wanted any more, on one side or the other."""
        link.arrivals.close()
        with self.lock:
            for mapped in list(self._mapped.values()):
                if link in mapped.links:
                    self._leave(mapped, link, why)

    def _leave(self, mapped: Mapped, link: Link, why: PeerError) -> None:
        mapped.closing[link] = mapped.links.pop(link)
        for borrowed in [one for key, one in mapped.borrowed.items() if key[0] is link]:
            borrowed.end(why)
            self._ending[borrowed] = False  # that the segment is closed says it all
        if not mapped.links and mapped not in self._unmapping:
            self._unmapping.append(mapped)
        self._tell_closed(mapped)

    def _tell_closed(self, mapped: Mapped) -> None:
        """Let go of links that have nothing of a segment any more, while it stays mapped for others."""
        for link in list(mapped.closing) if mapped.links else ():
            if not any(key[0] is link for key in mapped.borrowed):
                del mapped.closing[link]
                link.try_send(wire.pack_head(wire.Kind.CLOSED, mapped.key[1]))

    # --- the end ---

    def sweep(self) -> None:
        """Return and unmap what has no lease any more. Never waits; what must wait is left to the thread."""
        if not self.is_ending:
            return
        with self.lock:
            self._return_unused()
            by_device: dict[int, _Work] = {}
            for borrowed in [one for one in self._ending if one not in self._busy and one.leases.count == 0]:
                device = borrowed.mapped.mapping.device
                by_device.setdefault(device, _Work(device, [], [])).returned.append(borrowed)
            for mapped in self._unmapping:
                idle = all(borrowed.leases.count == 0 for borrowed in mapped.borrowed.values())
                if mapped not in self._busy and idle:
                    device = mapped.mapping.device
                    by_device.setdefault(device, _Work(device, [], [])).closed.append(mapped)
            for work in by_device.values():
                # A wait for the device would end a capture; the next sweep finds the same again.
                if not _core.capturing(work.device):
                    self._busy.update(work.returned, work.closed)
                    self._queue().put(work)

    def _return_unused(self) -> None:
        for borrowed in [one for one in self._ending if not one.was_used and one not in self._busy]:
            self._returned(borrowed)

    def _returned(self, borrowed: Borrowed) -> None:
        tell = self._ending.pop(borrowed, False)
        borrowed.mapped.borrowed.pop((borrowed.link, borrowed.number), None)
        if tell:
            borrowed.link.try_send(wire.pack_head(wire.Kind.RETURNED, borrowed.number))
        self._tell_closed(borrowed.mapped)

    def _queue(self) -> queue.SimpleQueue[_Work]:
        if self._work is None:
            self._work = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._work,), name="tracehook-unmap", daemon=True).start()
        return self._work

    def _serve(self, tasks: queue.SimpleQueue[_Work]) -> None:
        while True:
            work = tasks.get()
            try:
                native.wait_for_device(work.device)
            except RuntimeError:
                # The device is in an error, or a capture began meanwhile: the next sweep tries again.
                with self.lock:
                    self._busy.difference_update(work.returned, work.closed)
                continue
            self._finish(work)
            del work

    def _finish(self, work: _Work) -> None:
        with self.lock:
            for borrowed in work.returned:
                self._returned(borrowed)
        for mapped in work.closed:
            self._unmap(mapped)
        with self.lock:
            self._busy.difference_update(work.returned, work.closed)
        self.settled.set()

    def _unmap(self, mapped: Mapped) -> None:
        begin = time.monotonic_ns()
        result = 0
        try:
            mapped.mapping.close()  # without the lock: the driver may wait for the device here
        except RuntimeError as problem:
            result = getattr(problem, "code", -1)
        taken = time.monotonic_ns() - begin
        with self.lock:
            self._unmapped(mapped, taken, result)

    def _unmapped(self, mapped: Mapped, taken: int, result: int) -> None:
        self._unmapping.remove(mapped)
        if self._mapped.get(mapped.key) is mapped:
            del self._mapped[mapped.key]
        for borrowed in mapped.borrowed.values():
            self._ending.pop(borrowed, None)
        if not mapped.closing:
            return
        link, journal = next(iter(mapped.closing.items()))
        journal.note(
            "ipc.close",
            link.peer,
            segment=mapped.segment,
            pool=mapped.is_pool,
            generation=mapped.key[1],
            handle=mapped.handle_kind,
            address=mapped.mapping.address,
            size=mapped.mapping.size,
            device=mapped.mapping.device,
            value=mapped.key[0],
            duration_ns=taken,
            result=result,
        )
        for link in mapped.closing:
            link.try_send(wire.pack_head(wire.Kind.CLOSED, mapped.key[1]))

    # --- looking ---

    def outstanding(self, links: Iterable[Link]) -> bool:
        """Whether something of these peers is still mapped here on behalf of these links."""
        wanted = set(links)
        with self.lock:
            every = [*self._mapped.values(), *self._unmapping]
            return any(wanted & (mapped.links.keys() | mapped.closing.keys()) for mapped in every)

    def leased(self, links: Iterable[Link]) -> bool:
        """Whether a tensor of the program still lies on what came over these links."""
        wanted = set(links)
        with self.lock:
            return any(
                key[0] in wanted and borrowed.leases.count
                for mapped in self._mapped.values()
                for key, borrowed in mapped.borrowed.items()
            )

    def holds(self, address: int) -> bool:
        """Whether this is memory of a peer."""
        with self.lock:
            mappings = (mapped.mapping for mapped in [*self._mapped.values(), *self._unmapping])
            return any(0 <= address - mapping.address < mapping.size for mapping in mappings)

    def mapped(self) -> int:
        """Return how many segments of peers are mapped."""
        with self.lock:
            return len(self._mapped)

    def after_fork_in_child(self, why: str) -> None:
        """Let nothing be done with the parent's mappings, not even unmapping: that calls CUDA."""
        self.lock = threading.RLock()
        self._work = None
        for mapped in [*self._mapped.values(), *self._unmapping]:
            for borrowed in mapped.borrowed.values():
                borrowed.gone = PeerTensorGone(why)
        self._ending.clear()
        self._unmapping.clear()


IMPORTS = Imports()
