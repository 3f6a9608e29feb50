"""The text of logs as a table of DuckDB: one column for each field, and which rows are no events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb

from tracehook.audit.fields import FIELDS
from tracehook.audit.selection import LATEST

# Have no place in the sequence of events.
_OWN_SEQ = (
    *("trace.begin", "trace.end", "log.dropped", "log.summed", "communicator.calls", "communicator.group"),
    *("rank.known", "rehearsal.violation", "rehearsal.hang", "communicator.paths"),
)


def columns(form: str) -> str:
    """Return all columns in a form of name and type. Some are called as words of SQL are."""
    return ", ".join(form.format(f'"{name}"', kind) for name, kind in FIELDS.items())


def quoted(path: Path) -> str:
    """Return a path as it stands between quotes in SQL."""
    return str(path).replace("'", "''")


def create(database: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make the table. Column `file` says which file a row is of."""
    database.execute(f"CREATE TABLE {table} (file VARCHAR, {columns('{} {}')})")


def insert(database: duckdb.DuckDBPyConnection, table: str, files: Sequence[Path]) -> None:
    """Add the lines of files. DuckDB takes `*`, `?` and `[` in their names for a pattern. Raises duckdb.Error."""
    names = ", ".join(f"'{quoted(path)}'" for path in files)
    typed = columns("{}: '{}'")
    database.execute(
        f"INSERT INTO {table} SELECT filename, {columns('{}')} FROM read_json([{names}], "
        f"format = 'newline_delimited', compression = 'none', ignore_errors = true, filename = true, "
        f"hive_partitioning = false, "
        f"columns = {{{typed}}})"
    )


def link(folder: Path, name: str, text: Path) -> Path:
    """Return another name of the file, in `folder`, that DuckDB takes for no pattern."""
    made = folder / name
    made.symlink_to(text.absolute())
    return made


def _is_no_event() -> str:
    own = ", ".join(f"'{name}'" for name in _OWN_SEQ)
    whole = [name for name, kind in FIELDS.items() if kind in ("BIGINT", "UBIGINT")]
    bad = (
        f"event IS NULL OR event[1] IN ('{{', '[') OR t_ns IS NULL OR t_ns NOT BETWEEN 0 AND {LATEST} "
        f"OR (event NOT IN ({own}) AND (seq IS NULL OR seq NOT BETWEEN 1 AND {LATEST})) "
        f"OR us NOT BETWEEN 0 AND {LATEST} OR "
    )
    return bad + " OR ".join(f"{name} NOT BETWEEN -1 AND {LATEST}" for name in whole)


IS_NO_EVENT: Final = _is_no_event()
"""A condition of SQL on a row."""
