"""Compares between ranks, at its first use, where a collective's buffers lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tracehook.errors import RegistrationError, RegistrationMismatch
from tracehook.log.journal import warn

if TYPE_CHECKING:
    from tracehook.symmetric_memory.windows import GroupWindows

_OVERRUN = 0xFFFFFFFF

# 1 + the window's ordinal (0: outside of all windows), and the offset in bytes, or None where only whether it is in a
# window has to be equal. None: that buffer is the rank's own affair.
Place = tuple[int, int | None] | None


class PlacementCheck:
    """Called by the native side, on the thread that issues a collective whose placement is new.

    Returns an empty text if all ranks use the same place; otherwise why the call must not be made. It is then not made
    on any rank, and torch raises its error with that text.
    """

    def __init__(self, on_error: str, group_of: Callable[[int], GroupWindows | None]) -> None:
        self._on_error = on_error
        self._group_of = group_of

    def __call__(self, communicator_id: int, operation: str, send: Place, receive: Place) -> str:
        """Compare; `communicator_id` is the native one."""
        found = self._group_of(communicator_id)
        if found is None:
            return ""  # its windows are not ours
        communicator = found.communicator()
        sides = {"send": send, "receive": receive}
        entries = [f"{side} buffer {_where(place)}" for side, place in sides.items() if place is not None]
        if communicator is not None:
            uses, digest = communicator.digest()
            entries.append(f"{uses} collectives before, placements {digest:016x}")
        try:
            found.compare_use(f"placement of {operation}", entries)
        except RegistrationMismatch as problem:
            return self._mismatch(found, f"{problem}")
        except RegistrationError as problem:
            return f"tracehook: {problem}"
        for side, place in sides.items():
            if place is not None and place[0] == _OVERRUN:
                where = f"begins in a window of {found.about} and ends outside it"
                return f"tracehook: the {side} buffer of {operation} {where}"
        return ""

    def _mismatch(self, found: GroupWindows, text: str) -> str:
        communicator = found.communicator()
        if communicator is not None:
            communicator.log_agreement("placement.mismatch", 0, 0, 0)
        pinned = communicator is not None and any(window["pinned"] for window in communicator.windows())
        if self._on_error != "warn" or pinned:
            return f"tracehook: {text}"
        found.drop_all(text)
        warn(
            f"{text}; all windows of {found.about} were deregistered, it goes on without (SYMM_REGISTER_ON_ERROR=warn)"
        )
        return ""


def _where(place: tuple[int, int | None]) -> str:
    window, offset = place
    if window == _OVERRUN:
        return "beginning in a window and ending outside it"
    if not window:
        return "outside of all windows"
    return "in a window" if offset is None else f"in window {window - 1} at byte {offset}"
