"""Events as Parquet files have them, and as the logs have them: what tests of exports compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from tracehook.log.file_name import stem_of
from tracehook.log.reader import read_directory


def events(out: Path, columns: str = "process, seq, t_ns, event") -> list[tuple[Any, ...]]:
    """Return columns of all events in Parquet files."""
    found = duckdb.sql(f"SELECT {columns} FROM '{out}/event.parquet' ORDER BY ALL")
    assert found is not None
    return found.fetchall()


def in_logs(folder: Path) -> list[tuple[Any, ...]]:
    """Return the first four columns of the events in logs and rings, as the reader of one log finds them."""
    found = [
        (
            str(log.path.relative_to(folder).with_name(stem_of(log.path.name))),
            event.get("seq"),
            event["t_ns"],
            event["event"],
        )
        for log in read_directory(folder)
        for event in log.events
    ]
    return sorted(found, key=lambda row: [(value is None, value) for value in row])
