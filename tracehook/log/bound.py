"""How much room the log of a process may take."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tracehook.log.ring import MOST_EVENTS

LEAST_LIMIT: Final = 8 << 20  # bytes; a ring has some


class Bound(NamedTuple):
    """`limit`: bytes of all parts of the log (None: no limit). `ring_events`: how many events the ring holds."""

    limit: int | None = None
    ring_events: int = MOST_EVENTS

    def beside(self, log: Path | None, ring: Path | None) -> Bound:
        """Return what is left for the log, if its ring lies in the same folder."""
        if self.limit is None or log is None or ring is None or ring.parent != log.parent or not ring.exists():
            return self
        return self._replace(limit=self.limit - ring.stat().st_size)


NO_BOUND: Final = Bound()
