"""How another room follows the service, which must not import it: symmetric memory does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tracehook.log.journal import Journal
from tracehook.nccl.effect import Threshold
from tracehook.settings import Settings


class Host(Protocol):
    """What an extension may ask of the service."""

    settings: Settings
    switched: float
    """When registrations were switched on or off last, by the monotonic clock."""

    def open_bank(self) -> tuple[str, str] | None:
        """Open the bank of symmetric memory. Return why this process cannot have one (code, text); None if it has."""

    def status(self, flush: bool = True) -> dict[str, Any]:
        """Return what :func:`tracehook.status` does; without `flush` it waits for no other thread's file."""

    def push(self, event: str, **members: int) -> None:
        """Log an event, with each member of its row (cpp/events/events.def)."""


class Extension:
    """A room that follows the service. What it does not override does nothing."""

    def begun(self, host: Host, journal: Journal) -> None:
        """Hear that the log of this process begins, or began; in a forked child with CUDA it is another one."""

    def enabled(self, host: Host) -> None:
        """Follow the service, which was switched on; also called when it was on already."""

    def disabled(self) -> None:
        """Take no effect until :meth:`enabled` is called again."""

    def paying_calls(self, config: Settings) -> Mapping[str, Threshold]:  # noqa: ARG002
        """Return from which sizes on calls are faster on registered memory, as far as this room knows.

        Asked once, when CUDA comes up: by torch, which holds a lock. The answer is alike on all ranks of a host.
        """
        return {}

    def communicator_born(self) -> None:
        """Hear, on the log's thread, that there is one more communicator of several ranks. Does not wait."""

    def ended(self) -> None:
        """Hear, at the end of the interpreter, that the log has its last line."""

    def abandon(self) -> None:
        """Drop, in a forked child, what belongs to the parent."""

    def status(self) -> dict[str, Any]:
        """Return what this room adds to :func:`tracehook.status`."""
        return {}


EXTENSIONS: list[Extension] = []  # tracehook.hook.service.extend() adds to it


def tell_of_birth() -> None:
    """Tell all rooms that there is one more communicator of several ranks. The log's thread calls this."""
    for extension in EXTENSIONS:
        extension.communicator_born()
