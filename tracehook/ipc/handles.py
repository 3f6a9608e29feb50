"""Handles of a peer's memory that came over one link, and are not mapped yet.

Whoever reads them from the socket imports them at once: a tensor of 10 GiB in an expandable segment has 512
descriptors, and a process may often have no more than 1,024 open.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Sequence

from tracehook._core import ipc as native
from tracehook.errors import PeerError
from tracehook.ipc import wire

_MORE_FILES = "Raise the number of files that the process may open (ulimit -n)"


class ReceivedHandles:
    """Of one link. Any thread; the lock is held during calls into CUDA, and comes after all others of peers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._device: int | None = None  # where they are mapped; None: nothing is imported
        self._allocations: dict[int, native.Allocations] = {}  # by export
        self._expected: dict[int, int] = {}  # how many, in all
        self._problems: dict[int, str] = {}  # why those of an export are of no use

    def accept(self, device: int) -> None:
        """Import what comes from now on: it is known who sends it."""
        self._device = device

    def add(self, message: bytes, files: Sequence[int]) -> None:
        """Import the handles of a message, and close what came beside it. Never raises: :meth:`map` does."""
        try:
            with self._lock:
                if self._device is not None:
                    self._import(wire.unpack_head(message), self._device, message, files)
        except wire.WireError:
            pass  # of nothing that could be named: the offer will miss them
        finally:
            for file in files:
                os.close(file)

    def _import(self, head: wire.Head, device: int, message: bytes, files: Sequence[int]) -> None:
        export = head.number
        if head.form == wire.FIRST:
            self.release(export)
            self._allocations[export] = native.Allocations(device)
            self._expected[export] = head.total
        allocations = self._allocations.get(export)
        if allocations is None:
            return
        try:
            for file in files:
                allocations.add_file(file)
            for handle in wire.unpack_handles(message):
                allocations.add_fabric(handle)
        except RuntimeError as problem:
            self._problems.setdefault(export, str(problem))

    def map(self, offer: wire.Offer) -> native.Mapping:
        """Map the memory of an offer from what came for it, and release that in any case. Raises RuntimeError."""
        with self._lock:
            allocations = self._allocations.pop(offer.export, None)
            problem = self._problems.pop(offer.export, None)
            expected = self._expected.pop(offer.export, 0)
        if allocations is None:
            raise PeerError("its handles did not arrive", advice=_MORE_FILES)
        try:
            if problem is not None:
                raise PeerError(problem)
            if len(allocations) != expected:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                raise PeerError(
                    f"{len(allocations)} of its {expected} handles arrived; descriptors are lost if this process may "
                    f"not open as many files (ulimit -n: {limit})",
                    advice=_MORE_FILES,
                )
            return allocations.map(offer.handle_kind, offer.size, bool(offer.flags & wire.Flag.WRITABLE))
        finally:
            allocations.release()

    def release(self, export: int) -> None:
        """Release in the driver what came for an export."""
        with self._lock:
            self._problems.pop(export, None)
            self._expected.pop(export, None)
            allocations = self._allocations.pop(export, None)
            if allocations is not None:
                allocations.release()

    def close(self) -> None:
        """Release everything in the driver, and import nothing that comes later."""
        with self._lock:
            self._device = None
            for export in list(self._allocations):
                self.release(export)
