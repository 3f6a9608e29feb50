"""What this process has mapped of its peers' memory: each export once, whoever uses it.

A mapping lasts while its owner wants it to and, after that, while any torch tensor lies on it (a lease). Before a
mapping is unmapped, or a loan of it is returned, a thread of this module waits for the device. The calling thread must
not: the device may wait for a signal of a peer that waits for this rank's next call.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tracehook import _core
from tracehook._core import ipc as native
from tracehook.errors import PeerError, PeerLost, PeerTensorGone
from tracehook.hook import background
from tracehook.ipc import wire
from tracehook.ipc.events import PeerEvents, number_of
from tracehook.ipc.link import Link
from tracehook.log import clock


class Import:
    """One export of a peer process, mapped here."""

    def __init__(self, key: tuple[int, int], offer: wire.Offer, mapping: native.Mapping) -> None:
        self.key = key  # life of the peer's process, number of the export
        self.mapping = mapping
        self.segment = offer.segment
        self.is_pool = bool(offer.flags & wire.Flag.POOL)
        self.handle_kind = offer.handle_kind
        self.loans: dict[tuple[Link, int], ImportedLoan] = {}
        self.links: dict[Link, PeerEvents] = {}  # over which it came, and is still wanted
        self.awaiting: dict[Link, PeerEvents] = {}  # whose owner waits for the message that it is unmapped


class ImportedLoan:
    """One loan of a peer, as one group has it: what its PeerTensors share."""

    def __init__(self, table: Imports, imported: Import, number: int, link: Link) -> None:
        self._table = table
        self.imported = imported
        self.number = number
        self.link = link
        self.leases = native.Leases()
        self.was_used = False
        self.gone: PeerError | None = None  # why it must not be used any more
        self._when_gone: list[weakref.WeakMethod[Callable[[], None]]] = []

    def address(self, offset: int) -> int:
        """Return where a byte of the peer's segment is here."""
        return int(self.imported.mapping.address) + offset

    def lease(self, offset: int, nbytes: int) -> Any:
        """Return a DLPack capsule of bytes. Raises :class:`PeerTensorGone`."""
        with self._table.lock:
            if self.gone is not None:
                raise self.error()
            self.was_used = True
            return self.leases.lend(self.address(offset), nbytes, self.imported.mapping.device)

    def error(self) -> PeerError:
        """Return a new exception of why it must not be used."""
        assert self.gone is not None
        text = self.gone.text
        return PeerLost(text, self.link.peer) if isinstance(self.gone, PeerLost) else PeerTensorGone(text)

    def when_gone(self, method: Callable[[], None]) -> None:
        """Call this bound method, if its object still lives, when the loan must not be used any more."""
        self._when_gone.append(weakref.WeakMethod(method))

    def invalidate(self, why: PeerError) -> None:
        """Refuse new leases, and let those who keep tensors for their next use drop them."""
        self.gone = self.gone or why
        for reference in self._when_gone:
            method = reference()
            if method is not None:
                method()
        self._when_gone.clear()


class _Batch(NamedTuple):
    """What the thread returns and unmaps once the device has finished its work."""

    device: int
    loans: list[ImportedLoan]
    imports: list[Import]


def _named(link: Link, offer: wire.Offer) -> str:
    return f"a segment of rank {link.peer} ({offer.size} bytes)"


class Imports:
    """Of one process. Any thread; its lock is taken with a group's lock held or none, and not held during waits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._imports: dict[tuple[int, int], Import] = {}
        self._recalled: dict[ImportedLoan, bool] = {}  # not yet returned; whether its owner waits for the message
        self._unwanted: list[Import] = []  # not yet unmapped
        self._queued: set[Any] = set()  # handed to the thread
        self._batches: queue.SimpleQueue[_Batch | None] | None = None
        self.progress = threading.Event()  # set when something was returned or unmapped

    # --- mapping what peers offer ---

    def map_loan(self, link: Link, events: PeerEvents, offer: wire.Offer, device: int) -> ImportedLoan:
        """Return the loan of an offer; maps its segment if that is not mapped yet.

        Raises :class:`PeerError`, after telling the owner that its segment is not mapped here.
        """
        with self.lock:
            key = (link.life, offer.export)
            imported = self._imports.get(key)
            if imported is None or imported in self._unwanted:
                imported = self._map(link, events, offer, device)
                self._imports[key] = imported
            else:
                link.handles.release(offer.export)
            if offer.flags & wire.Flag.WRITABLE and not imported.mapping.writable:
                try:
                    imported.mapping.allow_writes()
                except RuntimeError as problem:
                    raise PeerError(f"{_named(link, offer)} cannot be mapped for writing: {problem}") from None
            imported.links[link] = events
            found = imported.loans.get((link, offer.loan))
            if found is None:
                found = imported.loans[link, offer.loan] = ImportedLoan(self, imported, offer.loan, link)
            return found

    def _map(self, link: Link, events: PeerEvents, offer: wire.Offer, device: int) -> Import:
        begin = clock.monotonic_ns()
        try:
            if offer.handle_kind == wire.HandleKind.RUNTIME:
                mapping = native.map_runtime(offer.handle, offer.size, device)
            else:
                mapping = link.handles.map(offer)
        except RuntimeError as problem:
            link.try_send(wire.pack_head(wire.Kind.NOT_MAPPED, offer.export))
            self._report_mapped(link, events, offer, device, 0, begin, getattr(problem, "code", -1))
            about = f"{_named(link, offer)} cannot be mapped"
            if isinstance(problem, PeerError):
                raise problem.within(about) from None
            raise PeerError(f"{about}: {problem}") from None
        self._report_mapped(link, events, offer, device, mapping.address, begin)
        return Import((link.life, offer.export), offer, mapping)

    # --- what owners ask for: nothing is unmapped here ---

    def on_recall(self, link: Link, number: int, why: PeerError) -> None:
        """The owner wants this loan back: refuse its use from now on, and mark it to be returned."""
        with self.lock:
            for imported in self._imports.values():
                found = imported.loans.get((link, number))
                if found is not None:
                    found.invalidate(why)
                    self._recalled[found] = True
                    return
        link.try_send(wire.pack_head(wire.Kind.RETURNED, number))

    def on_unmap_request(self, link: Link, number: int, why: PeerError) -> None:
        """The owner wants this export unmapped: refuse its use from now on, and mark it to be unmapped."""
        with self.lock:
            imported = self._imports.get((link.life, number))
            if imported is not None and link in imported.links:
                self._mark_unwanted(imported, link, why)
                return
            if imported is not None and link in imported.awaiting:
                return  # the unmapping itself tells the owner
        link.try_send(wire.pack_head(wire.Kind.UNMAPPED, number))

    def mark_unwanted(self, link: Link, why: PeerError) -> None:
        """Refuse the use of all that came over this link, mark it to be unmapped, and release unmapped handles."""
        link.handles.close()
        with self.lock:
            for imported in list(self._imports.values()):
                if link in imported.links:
                    self._mark_unwanted(imported, link, why)

    def _mark_unwanted(self, imported: Import, link: Link, why: PeerError) -> None:
        imported.awaiting[link] = imported.links.pop(link)
        for loan in [one for key, one in imported.loans.items() if key[0] is link]:
            loan.invalidate(why)
            self._recalled[loan] = False  # the message that the segment is unmapped covers its loans
        if not imported.links and imported not in self._unwanted:
            self._unwanted.append(imported)
        self._report_to_idle_links(imported)

    def _report_to_idle_links(self, imported: Import) -> None:
        """Report an import that stays mapped for other links as unmapped to links that have no loan of it any more."""
        for link in list(imported.awaiting) if imported.links else ():
            if not any(key[0] is link for key in imported.loans):
                del imported.awaiting[link]
                link.try_send(wire.pack_head(wire.Kind.UNMAPPED, imported.key[1]))

    # --- returning and unmapping ---

    def return_unused(self) -> None:
        """Return recalled loans, and unmap unwanted imports, that have no lease. The thread does what has to wait."""
        if not (self._recalled or self._unwanted):
            return
        with self.lock:
            for loan in [one for one in self._recalled if not one.was_used and one not in self._queued]:
                self._return(loan)
            by_device: dict[int, _Batch] = {}
            for loan in [one for one in self._recalled if one not in self._queued and one.leases.count == 0]:
                device = loan.imported.mapping.device
                by_device.setdefault(device, _Batch(device, [], [])).loans.append(loan)
            for imported in self._unwanted:
                idle = all(loan.leases.count == 0 for loan in imported.loans.values())
                if imported not in self._queued and idle:
                    device = imported.mapping.device
                    by_device.setdefault(device, _Batch(device, [], [])).imports.append(imported)
            for batch in by_device.values():
                # A wait for the device would end a capture; the next call finds the same again.
                if not _core.capturing(batch.device):
                    self._queued.update(batch.loans, batch.imports)
                    self._queue().put(batch)

    def _return(self, loan: ImportedLoan) -> None:
        """Drop the records of a loan, and tell its owner."""
        tell = self._recalled.pop(loan, False)
        loan.imported.loans.pop((loan.link, loan.number), None)
        if tell:
            loan.link.try_send(wire.pack_head(wire.Kind.RETURNED, loan.number))
        self._report_to_idle_links(loan.imported)

    def _queue(self) -> queue.SimpleQueue[_Batch | None]:
        if self._batches is None:
            self._batches = queue.SimpleQueue()
            background.start(self, self._run, "tracehook-unmap", self._batches)
        return self._batches

    def end_soon(self) -> None:
        """At exit: unmap no more."""
        self._queue().put(None)

    def _run(self, batches: queue.SimpleQueue[_Batch | None]) -> None:
        while (batch := batches.get()) is not None:
            try:
                native.wait_for_device(batch.device)
            except RuntimeError:
                # The device is in an error, or a capture began meanwhile: the next call of return_unused tries again.
                with self.lock:
                    self._queued.difference_update(batch.loans, batch.imports)
                continue
            self._finish(batch)
            del batch

    def _finish(self, batch: _Batch) -> None:
        with self.lock:
            for loan in batch.loans:
                self._return(loan)
        for imported in batch.imports:
            self._unmap(imported)
        with self.lock:
            self._queued.difference_update(batch.loans, batch.imports)
        self.progress.set()

    def _unmap(self, imported: Import) -> None:
        begin = clock.monotonic_ns()
        result = 0
        try:
            imported.mapping.unmap()  # without the lock: the driver may wait for the device here
        except RuntimeError as problem:
            result = getattr(problem, "code", -1)
        taken = clock.monotonic_ns() - begin
        with self.lock:
            self._drop(imported)
            self._report_unmapped(imported, taken, result)

    def _drop(self, imported: Import) -> None:
        """Drop the records of an import."""
        self._unwanted.remove(imported)
        if self._imports.get(imported.key) is imported:
            del self._imports[imported.key]
        for loan in imported.loans.values():
            self._recalled.pop(loan, None)

    @staticmethod
    def _report_mapped(
        link: Link, events: PeerEvents, offer: wire.Offer, device: int, address: int, begin: int, result: int = 0
    ) -> None:
        events.write(
            "ipc.open",
            link.peer,
            addr=address,
            size=offer.size,
            peer_life=link.life,
            peer_segment=number_of(offer.segment, bool(offer.flags & wire.Flag.POOL)),
            generation=offer.export,
            handle=offer.handle_kind,
            device=device,
            duration_ns=clock.monotonic_ns() - begin,
            result=result,
        )

    @staticmethod
    def _report_unmapped(imported: Import, taken: int, result: int) -> None:
        if not imported.awaiting:
            return
        link, events = next(iter(imported.awaiting.items()))
        events.write(
            "ipc.close",
            link.peer,
            peer_segment=number_of(imported.segment, imported.is_pool),
            generation=imported.key[1],
            handle=imported.handle_kind,
            addr=imported.mapping.address,
            size=imported.mapping.size,
            device=imported.mapping.device,
            peer_life=imported.key[0],
            duration_ns=taken,
            result=result,
        )
        for link in imported.awaiting:
            link.try_send(wire.pack_head(wire.Kind.UNMAPPED, imported.key[1]))

    # --- looking ---

    def has_mapped(self, links: Iterable[Link]) -> bool:
        """Whether something of these peers is still mapped here on behalf of these links."""
        wanted = set(links)
        with self.lock:
            every = [*self._imports.values(), *self._unwanted]
            return any(wanted & (imported.links.keys() | imported.awaiting.keys()) for imported in every)

    def has_leases(self, links: Iterable[Link]) -> bool:
        """Whether a tensor of the program still lies on what came over these links."""
        wanted = set(links)
        with self.lock:
            return any(
                key[0] in wanted and loan.leases.count
                for imported in self._imports.values()
                for key, loan in imported.loans.items()
            )

    def contains(self, address: int) -> bool:
        """Whether this is memory of a peer."""
        with self.lock:
            mappings = (imported.mapping for imported in [*self._imports.values(), *self._unwanted])
            return any(0 <= address - mapping.address < mapping.size for mapping in mappings)

    def mapped(self) -> int:
        """Return how many segments of peers are mapped."""
        with self.lock:
            return len(self._imports)

    def after_fork_in_child(self, why: str) -> None:
        """Refuse the use of the parent's mappings, and do not unmap them: that calls CUDA."""
        self.lock = threading.RLock()
        self._batches = None
        for imported in [*self._imports.values(), *self._unwanted]:
            for loan in imported.loans.values():
                loan.gone = PeerTensorGone(why)
        self._recalled.clear()
        self._unwanted.clear()
