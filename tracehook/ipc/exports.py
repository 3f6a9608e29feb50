"""What this process has offered to peers, and holds for them.

*A loan* is one storage that was offered. It is held until nobody else here uses it, or `release` is called, and every
peer that has it has returned it. *An export* is one segment, whole. Peers keep it mapped while any loan of it is
wanted; then they are asked to unmap it, and the last storages are held until they have. So the allocator can never
free or hand out again what a peer may still read. A segment that is offered again after that is a new export.

Memory of no segment, as that of expandable segments, is exported storage by storage: the driver's allocations under
one, whole. Only the storage keeps these where they are, so another storage beside it is another export.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tracehook import _core
from tracehook._core import ipc as native
from tracehook.errors import PeerError, PeerLost
from tracehook.ipc import wire
from tracehook.ipc.events import PeerEvents, number_of, own_life
from tracehook.ipc.link import Link, close_files
from tracehook.log import clock
from tracehook.log.stderr import say_once

PAUSABLE = "pausable"  # the kind of a segment whose library can take its memory away
ALLOCATIONS = "allocations"  # the kind of an export that is no segment
_ALONE = 2  # what sys.getrefcount says of an object that only the loan refers to
_PATIENCE, _PAUSE = 10.0, 0.001  # seconds that a scope waits, and between two looks
_MUCH = 256 << 20  # bytes: of less no word
_VIEW = "Share a plain tensor, or a view of it with another shape and type"
_MOVE = "Copy the tensor to that device first"
_DTYPES = {getattr(torch, name): number for number, name in enumerate(wire.DTYPES) if hasattr(torch, name)}


class Loan:
    """One storage, held for peers."""

    def __init__(self, number: int, export: Export, storage: Any) -> None:
        self.number = number
        self.export = export
        self.storage = storage
        self.address = storage.data_ptr()
        self.nbytes = storage.nbytes()
        self.links: set[Link] = set()  # to the peers that have it
        self.is_recalled = False
        self.is_late = False  # a scope has waited for it in vain

    def is_wanted(self) -> bool:
        """Whether somebody here still uses the memory, besides us.

        Not if the storage was resized: then the memory went back to the allocator, and cannot be held.
        """
        is_used = torch._C._storage_Use_Count(self.storage._cdata) > 1 or sys.getrefcount(self.storage) > _ALONE
        return bool(is_used and self.storage.data_ptr() == self.address)

    def waits_for_close(self) -> bool:
        """Whether it is memory of a scope that peers have in a group that is open."""
        return self.export.is_pool and not all(link.is_closing for link in self.links)


# A loan that is to be sent, and its storage: until then the loan may be dropped.
Prepared = tuple[Loan, Any]


class Export:
    """One segment, or the allocations under one storage, as peers map it. `key`: its kind and number."""

    def __init__(self, number: int, key: tuple[str, int], device: int, exported: Any) -> None:
        self.number = number
        self.key = key
        self.device = device
        self.handle_kind, self.base, self.size, self.allocation, self.handle = exported
        self.loans: dict[int, Loan] = {}
        self.links: set[Link] = set()  # to the peers that have it mapped
        self.is_recalled = False

    @property
    def segment(self) -> int:
        """Return the segment's number; 0 for memory of no segment."""
        return 0 if self.key[0] == ALLOCATIONS else self.key[1]

    @property
    def is_pool(self) -> bool:
        """Whether it is a segment of our pools."""
        return self.key[0] == "pool"

    def handle_messages(self) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the messages with the handles of its allocations, and what goes beside each: the caller closes it."""
        total = self.size // self.allocation
        for begin in range(0, total, wire.HANDLES_OF_A_MESSAGE):
            count = min(wire.HANDLES_OF_A_MESSAGE, total - begin)
            place = (self.base + begin * self.allocation, self.allocation, count)
            head = wire.pack_head(wire.Kind.HANDLES, self.number, 0 if begin else wire.FIRST, count, total)
            if self.handle_kind == wire.HandleKind.FILE:
                yield head, native.export_files(*place)
            else:
                yield head + b"".join(native.export_fabric(*place)), []

    def log(self, link: Link, events: PeerEvents, *, ends: bool) -> None:
        """Log that a peer has it now, or no longer."""
        events.write(
            "ipc.release" if ends else "ipc.export",
            link.peer,
            addr=self.base,
            size=self.size,
            life=own_life(),
            segment=number_of(self.segment, self.is_pool),
            generation=self.number,
            handle=self.handle_kind,
            device=self.device,
        )


class Exports:
    """Of one process. Any thread; its lock is taken with a group's lock held or none, and held during sends."""

    def __init__(self, is_of_peer: Callable[[int], bool]) -> None:
        self._is_of_peer = is_of_peer  # whether memory at this address is a peer's
        self._lock = threading.RLock()
        self._export_numbers = itertools.count(1)
        self._loan_numbers = itertools.count(1)
        self._current: dict[tuple[str, int], Export] = {}  # by kind and id of the segment: those to offer from
        self._loans: dict[int, Loan] = {}  # by the storage's address in torch: those not recalled
        self._exports: dict[int, Export] = {}  # all, by number
        self._events_of_links: dict[Link, PeerEvents] = {}

    def add_link(self, link: Link, events: PeerEvents) -> None:
        """Let the peer of this link be offered to."""
        with self._lock:
            self._events_of_links[link] = events

    # --- offering ---

    def prepare(self, tensor: Tensor, device: int, writable: bool) -> tuple[Prepared | None, wire.Offer]:
        """Return the loan of a tensor (none if it has no elements), and its record. Raises :class:`PeerError`."""
        _check(tensor, device)
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if len(shape) > wire.MOST_DIMENSIONS:
            raise PeerError(f"a tensor of {len(shape)} dimensions; at most {wire.MOST_DIMENSIONS} can be shared")
        dtype = _DTYPES[tensor.dtype]
        flags = int(wire.Flag.WRITABLE) if writable else 0
        if tensor.numel() == 0:
            return None, wire.Offer(0, 0, 0, 0, 0, 0, 0, dtype, flags, b"", shape, strides)
        span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        with self._lock:
            loan = self._loan_of(tensor)
        export = loan.export
        return (loan, tensor.untyped_storage()), wire.Offer(
            export.number,
            export.segment,
            loan.number,
            export.size,
            tensor.data_ptr() - export.base,
            span * tensor.element_size(),
            export.handle_kind,
            dtype,
            flags | (wire.Flag.POOL if export.is_pool else 0),
            export.handle,
            shape,
            strides,
        )

    def _loan_of(self, tensor: Tensor) -> Loan:
        storage = tensor.untyped_storage()
        found = self._loans.get(storage._cdata)
        if found is not None and found.address == storage.data_ptr():
            return found
        if found is not None:
            self._recall([found])
        key, *place = self._place(tensor, storage)
        export = self._current.get(key)
        if export is None:
            number = next(self._export_numbers)
            try:
                exported = native.export_memory(*place)
            except RuntimeError as problem:
                raise PeerError(str(problem)) from None
            if key[0] == ALLOCATIONS:
                key = (ALLOCATIONS, number)
            export = Export(number, key, place[2], exported)
            self._current[key] = export
            self._add(export)
        loan = Loan(next(self._loan_numbers), export, storage)
        export.loans[loan.number] = self._loans[storage._cdata] = loan
        return loan

    def _place(self, tensor: Tensor, storage: Any) -> tuple[tuple[str, int], int, int, int]:
        """Return what is to be exported for a tensor: key, address, bytes, device."""
        found = native.segment_of(tensor.data_ptr())
        if found is not None:
            kind, segment, base, size, device = found
            if kind == PAUSABLE:
                raise PeerError(
                    "a library can take its memory away and put other memory there, which a peer would not see",
                    advice="Copy it into ordinary memory, and share that",
                )
            return (kind, segment), base, size, device
        address = storage.data_ptr()
        if self._is_of_peer(address):
            raise PeerError(f"its memory ({address:#x}) is a peer's", advice="Share it from its owner, or a copy")
        if not native.has_handles(address):
            raise PeerError(
                f"its memory ({address:#x}) was made neither by torch's caching allocator nor by cuMemCreate",
                advice="Copy it first",
            )
        return (ALLOCATIONS, 0), address, storage.nbytes(), tensor.device.index

    def send(self, link: Link, data: bytes, loans: Sequence[Prepared | None], timeout: float) -> None:
        """Send a message with offers, and before it the handles that the peer lacks. Raises PeerLost or PeerError."""
        with self._lock:
            for loan in loans:
                if loan is not None:
                    self._lend(link, loan, timeout)
            link.send(data, (), timeout)

    def _lend(self, link: Link, prepared: Prepared, timeout: float) -> None:
        """Record that the peer has this loan, and send it the handles of its export if it lacks them."""
        if link.ended is not None:  # the thread that saw it drops the records of the link, or has done so
            raise link.lost_error()
        loan, storage = prepared
        export = loan.export
        # Its records may have been dropped since it was prepared: the last peer has returned it, or another thread's
        # exchange has failed.
        self._add(export)
        if loan.storage is None:
            loan.storage, loan.is_recalled, export.is_recalled = storage, False, False
            self._loans.setdefault(storage._cdata, loan)
        export.loans[loan.number] = loan
        if link not in export.links:
            self._send_handles(link, export, timeout)
            export.links.add(link)
            export.log(link, self._events_of_links[link], ends=False)
        loan.links.add(link)

    def _add(self, export: Export) -> None:
        if export.number not in self._exports and export.is_pool:
            _core.count_lent_segments(1)
        self._exports[export.number] = export

    @staticmethod
    def _send_handles(link: Link, export: Export, timeout: float) -> None:
        if export.handle_kind == wire.HandleKind.RUNTIME:
            return
        try:
            for message, files in export.handle_messages():
                try:
                    link.send(message, files, timeout)
                finally:
                    close_files(files)
        except PeerLost:
            raise
        except RuntimeError as problem:
            raise PeerError(str(problem)) from None

    # --- the end of a loan ---

    def recall_unused(self) -> None:
        """Ask peers for what nobody here uses any more, but for memory of scopes in groups that are open.

        When a peer returns it depends on the peer's device; where the next tensors of scopes lie must not.
        """
        with self._lock:
            unused = [loan for loan in self._loans.values() if not loan.is_wanted()]
            self._recall([loan for loan in unused if not loan.waits_for_close()])
            if sum(loan.nbytes for loan in unused if loan.waits_for_close()) > _MUCH:
                say_once(
                    f"this program freed tensors of scopes, more than {_MUCH >> 20} MiB, that it has lent to peers. "
                    "Their memory comes back when it closes the PeerGroup. Lend the same tensors again in place of new "
                    "ones, or close the group now and then"
                )

    def drop_unlent(self) -> None:
        """Hold nothing for an exchange that failed before a peer had it."""
        with self._lock:
            self._recall([loan for loan in self._loans.values() if not loan.links])

    def recall(self, tensor: Tensor) -> bool:
        """Ask peers for a tensor's memory, though it is still used here; False if it was not offered."""
        with self._lock:
            loan = self._loans.get(tensor.untyped_storage()._cdata)
            if loan is None:
                return False
            self._recall([loan])
            return True

    def _recall(self, loans: Sequence[Loan]) -> None:
        for loan in loans:
            self._mark_recalled(loan)
        for export in {loan.export for loan in loans}:
            self._ask_and_drop(export, loans)

    def _mark_recalled(self, loan: Loan) -> None:
        if not loan.is_recalled:
            loan.is_recalled = True
            if self._loans.get(loan.storage._cdata) is loan:
                del self._loans[loan.storage._cdata]

    def _ask_and_drop(self, export: Export, fresh: Sequence[Loan] = ()) -> None:
        is_wanted = not all(loan.is_recalled for loan in export.loans.values())
        for loan in fresh if is_wanted else ():
            for link in loan.links if loan.export is export else ():
                link.try_send(wire.pack_head(wire.Kind.RECALL, loan.number))
        if not is_wanted and not export.is_recalled:
            self._ask_to_unmap(export)
        self._drop_unheld(export, is_wanted)

    def _ask_to_unmap(self, export: Export) -> None:
        export.is_recalled = True
        if self._current.get(export.key) is export:
            del self._current[export.key]
        for link in list(export.links):
            link.try_send(wire.pack_head(wire.Kind.UNMAP, export.number))

    def _drop_unheld(self, export: Export, is_wanted: bool) -> None:
        """Drop the records, and with them the storages, that no peer has. The last loans stay until it is unmapped."""
        if is_wanted:
            for loan in [loan for loan in export.loans.values() if loan.is_recalled and not loan.links]:
                del export.loans[loan.number]
                loan.storage = None
        if not export.links:  # nobody has it, so nothing need be held for anybody
            for loan in export.loans.values():
                self._mark_recalled(loan)
                loan.storage = None
            export.loans.clear()
            if self._exports.pop(export.number, None) is not None and export.is_pool:
                _core.count_lent_segments(-1)
            if self._current.get(export.key) is export:
                del self._current[export.key]

    def wait_for_closed_groups(self, device: int) -> None:
        """Before a scope: wait until peers have unmapped what the program freed and had lent in groups that it closed.

        When they do so depends on each rank; where the next tensors lie must not. In groups that are open peers are
        not asked for it.
        """
        self.recall_unused()
        deadline = clock.monotonic() + _PATIENCE
        while held := self._held_for_closed_groups(device):
            if clock.monotonic() > deadline:
                for loan in held:
                    loan.is_late = True
                say_once(
                    "a peer still maps memory of a symmetric pool that the program freed, more than "
                    f"{_PATIENCE:.0f} s after this rank closed the PeerGroup. This scope and later ones do without it, "
                    "so their tensors may lie elsewhere than on other ranks. Before the scope let all ranks close the "
                    "PeerGroup, and drop their tensors on memory of peers"
                )
                return
            clock.sleep(_PAUSE)

    def _held_for_closed_groups(self, device: int) -> list[Loan]:
        with self._lock:
            exports = [export for export in self._exports.values() if export.is_pool and export.device == device]
            return [
                loan
                for export in exports
                for loan in export.loans.values()
                if loan.is_recalled and not loan.is_late and not loan.is_wanted()
                # Of a segment that is to be unmapped the last loans stay until it is.
                if all(link.is_closing for link in (export.links if export.is_recalled else loan.links))
            ]

    # --- what peers report ---

    def on_returned(self, link: Link, number: int) -> None:
        """The peer does not use this loan any more."""
        with self._lock:
            for export in list(self._exports.values()):
                loan = export.loans.get(number)
                if loan is not None and loan.is_recalled:
                    loan.links.discard(link)
                    self._ask_and_drop(export)

    def on_unmapped(self, link: Link, number: int) -> None:
        """The peer has unmapped this export."""
        with self._lock:
            export = self._exports.get(number)
            if export is not None and link in export.links:
                self._drop_peer(link, export)

    def on_not_mapped(self, link: Link, number: int) -> None:
        """The peer could not map this export: its handle goes out again with the next offer."""
        with self._lock:
            export = self._exports.get(number)
            if export is not None:
                export.links.discard(link)
                for loan in export.loans.values():
                    loan.links.discard(link)
                self._ask_and_drop(export)

    def drop_link(self, link: Link) -> None:
        """Drop the records of what this peer has: it has ended, and its mappings with it."""
        with self._lock:
            for export in list(self._exports.values()):
                if link in export.links:
                    self._drop_peer(link, export)
            self._events_of_links.pop(link, None)

    def _drop_peer(self, link: Link, export: Export) -> None:
        export.links.discard(link)
        for loan in export.loans.values():
            loan.links.discard(link)
        export.log(link, self._events_of_links[link], ends=True)
        self._ask_and_drop(export)

    def is_mapped_by(self, link: Link) -> bool:
        """Whether this peer still has something of this process mapped."""
        with self._lock:
            return any(link in export.links for export in self._exports.values())

    def held(self) -> tuple[int, int]:
        """Return how many segments and storages are held for peers."""
        with self._lock:
            return len(self._exports), sum(len(export.loans) for export in self._exports.values())


def _check(tensor: Any, device: int) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise PeerError(f"a {type(tensor).__name__} was given, expected a torch.Tensor, a list of them or None")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise PeerError("sparse, quantised, conjugated or lazily negated tensors cannot be shared", advice=_VIEW)
    if not tensor.is_cuda:
        raise PeerError(f"a tensor on {tensor.device} was given, expected one on cuda:{device}", advice=_MOVE)
    if tensor.device.index != device:
        raise PeerError(f"a tensor on {tensor.device} was given; this group's device is cuda:{device}", advice=_MOVE)
    if tensor.dtype not in _DTYPES:
        raise PeerError(f"tensors of {tensor.dtype} cannot be shared", advice=_VIEW)
