"""What happens when a scope ends: the ranks register what is missing, or hear that one cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from tracehook import _core
from tracehook.log.text import in_bytes
from tracehook.symmetric_memory.pools import OpenScope, PoolLimitError, explain_out_of_memory
from tracehook.symmetric_memory.windows import GroupWindows, in_order

Ends = Callable[[GroupWindows], int]  # how many scopes of a group ended since its last call


class Memory(Protocol):
    """What the end of a scope needs of the process's symmetric memory."""

    def register(self, windows: Sequence[GroupWindows], segments: Sequence[int], ends: Ends) -> None:
        """Register what is missing."""

    def limit_error(self) -> PoolLimitError:
        """Return the exception for a pool that may not grow."""

    def open_scopes(self) -> list[OpenScope]:
        """Return the open scopes of all threads."""

    def push(self, event: str, **members: int) -> None:
        """Log an event."""


class ScopeEnd:
    """Called when a scope ends and there is something to do: something new was touched, or it failed."""

    def __init__(self, memory: Memory, native: _core.PoolScope, windows: Sequence[GroupWindows], device: int) -> None:
        self._memory = memory
        self._native = native
        self._windows = windows
        self._device = device
        self._refusals = _core.last_refusal().count

    def __call__(self, touched: list[int] | None, error: BaseException | None) -> None:
        """Register the segments that were touched; or, after an error, tell the other ranks, and explain it."""
        if error is not None:
            with contextlib.suppress(RuntimeError):  # what matters is the error that the program gets
                self._decline(error)
            refusal = _core.last_refusal()
            if type(error) is torch.OutOfMemoryError and refusal.count != self._refusals and refusal.limit:
                self._refusals = refusal.count
                raise self._memory.limit_error() from error
            if type(error) is torch.OutOfMemoryError and not _core.capturing(self._device):
                torch.cuda.empty_cache()  # what torch does before it gives up; before 2.13 not inside a scope
                explain_out_of_memory(error, self._memory.open_scopes())
            return
        assert touched is not None
        if _core.capturing(self._device):
            self._memory.push("window.defer", segments=len(touched))
            for found in self._windows:
                found.deferred.extend(segment for segment in touched if segment not in found.deferred)
            return
        if all(found.refused is not None for found in self._windows):
            return
        self._count_on_communicators()
        try:
            self._memory.register(self._windows, touched, self._ends)
        finally:  # which may have made them; whatever became of it, all ranks go on alike
            self._count_on_communicators()

    def _count_on_communicators(self) -> None:
        communicators = [one for found in self._windows if (one := found.communicator()) is not None]
        if len(communicators) == len(self._windows):
            self._native.set_communicators(communicators)

    def _decline(self, error: BaseException) -> None:
        """Spare the others the wait for this rank, which does not come to the end of this scope."""
        device = self._device
        free, total = torch.cuda.mem_get_info(device) if isinstance(error, torch.OutOfMemoryError) else (0, 0)
        room = f"; {in_bytes(free)} of {in_bytes(total)} are free on its device {device}" if total else ""
        why = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}{room}"
        for found in in_order(self._windows):
            found.decline(why, self._ends(found))

    def _ends(self, found: GroupWindows) -> int:
        ends: int = self._native.ends(self._windows.index(found))
        return ends
