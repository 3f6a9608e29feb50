"""How far the logs of a directory were exported."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tracehook.log.lines import LogError

VERSION: Final = 2


@dataclass
class Reached:
    """How far one log was exported. `parts`: by number of the part, bytes of its text that were read.

    `seq`: number of the last event that is there, also if it stood in a line that sums events, or in the ring.
    """

    parts: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    over: bool = False  # the process ended without an end of its log; what it left in its ring is there


@dataclass
class Cursor:
    """How far the logs were exported, by the stem of their files; the number of batches so far."""

    batches: int = 0
    logs: dict[str, Reached] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """Return it as text."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode()


def read_cursor(text: bytes | None) -> Cursor:
    """Return what :meth:`Cursor.as_json` wrote; None is the beginning. Raises :class:`LogError`."""
    if text is None:
        return Cursor()
    try:
        read: dict[str, Any] = json.loads(text)
        if read["version"] != VERSION:
            raise LogError(f"the export was begun by another version of tracehook ({read['version']}); use a new OUT")
        return Cursor(read["batches"], {stem: Reached(**reached) for stem, reached in read["logs"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        if isinstance(problem, LogError):
            raise
        raise LogError("the state of the export cannot be read; use a new OUT") from problem
