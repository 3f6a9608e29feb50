"""The text of logs as a table of DuckDB: one column for each field, and which rows are no events.

A job has few of the many kinds of events, so few of the fields. A column of nothing still takes time for each row, so
only the fields of the events that are there are read; a column that no event has is made up when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from tracehook.audit.fields import FIELDS, TABLE
from tracehook.audit.selection import LATEST
from tracehook.log.lines import LONGEST_LINE
from tracehook.log.tables import ABOUT

# Have no place in the sequence of events.
_OWN_SEQ = tuple(name for name, about in ABOUT.items() if about.is_line)
_COMMON: Final = frozenset(name for name, field in TABLE.items() if field.is_common)
_OF_BEGIN: Final = frozenset({"local"})
OF_PROCESS: Final = ("rank", "world_size")
"""Fields of which table ``process`` says more: no columns of ``event``."""

OWN: Final = "process INTEGER, rank INTEGER, recovered BOOLEAN, ns BIGINT, is_no_event BOOLEAN, said_rank INTEGER"
"""The other columns of ``event``; the last two go when all is read."""


def fields_of(events: Collection[str]) -> list[str]:
    """Return the fields that these events have; all of them if one is of a newer schema, or none of ours."""
    if any(event not in ABOUT for event in events):
        return list(FIELDS)
    wanted = _COMMON | _OF_BEGIN | frozenset(OF_PROCESS) | {name for event in events for name in ABOUT[event].fields}
    return [name for name in FIELDS if name in wanted]


def column_list(names: Iterable[str]) -> str:
    """Return columns as SQL has them. Some are called as words of SQL are."""
    return ", ".join(f'"{name}"' for name in names)


def create_event(database: duckdb.DuckDBPyConnection, fields: Collection[str]) -> None:
    """Make table ``event``, with a column for each field. Those that are not among `fields` are NULL in every row."""
    made_up = '"{0}" {1} GENERATED ALWAYS AS (CAST(NULL AS {1}))'
    columns = [
        ('"{0}" {1}' if name in fields else made_up).format(name, kind)
        for name, kind in FIELDS.items()
        if name not in OF_PROCESS
    ]
    database.execute(f"CREATE TABLE event ({OWN}, {', '.join(columns)})")


def lines_of(files: Sequence[Path], fields: Iterable[str]) -> str:
    """Return what reads these fields of the lines of files, as SQL.

    Its column `file_index` counts the files from 0. DuckDB takes `*`, `?` and `[` in their names for a pattern.
    """
    names = ", ".join(f"'{quoted(path)}'" for path in files)
    typed = ", ".join(f"\"{name}\": '{FIELDS[name]}'" for name in fields)
    return (
        f"read_json([{names}], format = 'newline_delimited', compression = 'none', ignore_errors = true, "
        f"hive_partitioning = false, maximum_object_size = {LONGEST_LINE}, columns = {{{typed}}})"
    )


def quoted(path: Path) -> str:
    """Return a path as it stands between quotes in SQL."""
    return str(path).replace("'", "''")


def link(folder: Path, name: str, text: Path) -> Path:
    """Return another name of the file, in `folder`, that DuckDB takes for no pattern."""
    made = folder / name
    made.symlink_to(text.absolute())
    return made


def add_rows(database: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Add rows of all columns of a table. Column by column: DuckDB takes a millisecond for a row by itself."""
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        database.execute(f"INSERT INTO {table} SELECT {', '.join(['unnest(?)'] * len(columns))}", columns)


def is_no_event(fields: Iterable[str]) -> str:
    """Return a condition of SQL on a row that has these fields: whether its line is no event."""
    own = ", ".join(f"'{name}'" for name in _OWN_SEQ)
    signed = column_list(name for name in fields if FIELDS[name] == "BIGINT")
    unsigned = column_list(name for name in fields if FIELDS[name] == "UBIGINT")
    return (
        f"coalesce(event IS NULL OR event[1] IN ('{{', '[') OR t_ns IS NULL OR t_ns NOT BETWEEN 0 AND {LATEST} "
        f"OR (event NOT IN ({own}) AND (seq IS NULL OR seq NOT BETWEEN 1 AND {LATEST})) "
        f"OR us NOT BETWEEN 0 AND {LATEST} "
        f"OR least({signed}) < -1 OR greatest({signed}) > {LATEST} OR greatest({unsigned}) > {LATEST}, false)"
    )
