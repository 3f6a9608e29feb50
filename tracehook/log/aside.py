"""Who has lines for the log that are no events of the ring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Aside(Protocol):
    """Hears every event, and says what else is to be logged. The log's thread calls it."""

    def hear(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take an event: of the ring, or a line without a `seq`. Never waits, never raises."""

    def look(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the events to write now, with their fields. Never raises."""
