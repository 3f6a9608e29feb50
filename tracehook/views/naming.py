"""How what the tables hold is said to people and to other programs: a process, a moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def name_of(row: dict[str, Any]) -> str:
    """Call a process, a row of table ``process``, what a person would: ``rank 3 (host, pid)``."""
    where = f"({row['host'] or 'host ?'}, {known(row['pid'])})"
    if row["rank"] is None:
        return f"no rank {where}"
    attempt = f", attempt {row['attempt']}" if row["attempt"] else ""
    return f"rank {row['rank']}{attempt} {where}"


def known(value: object) -> object:
    """Return it, or a question mark if the log does not say."""
    return "?" if value is None else value


def wall_at_zero(row: dict[str, Any]) -> int | None:
    """Return nanoseconds since 1970 at time 0 of the tables, by the clock of a process, if its log says."""
    if row["began"] is None or row["began_ns"] is None:
        return None
    since = row["began"].replace(tzinfo=UTC) - _EPOCH
    wall = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
    return int(wall - row["began_ns"] - row["shift_ns"])
