"""Who has lines for the log that are no events of the ring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Aside(Protocol):
    """Hears what happens to communicators, and says what else is to be logged. The log's thread calls it."""

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event of a communicator."""

    def look(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the events to write now, with their fields. Never raises."""
