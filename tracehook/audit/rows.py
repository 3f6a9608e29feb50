"""Rows of a table as bytes, which tasks send to each other: a Parquet file, with every type as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import duckdb

from tracehook.audit.lines_table import create_event, fields_of, quoted

Rows = bytes

_numbers = count()
# Parquet has no integer of 128 bits, which sums are; no table here has a number with so many digits otherwise.
_SUM: Final = "HUGEINT"
_INSTEAD: Final = "DECIMAL(38,0)"


def pack(database: duckdb.DuckDBPyConnection, scratch: Path, sql: str) -> Rows:
    """Return the rows that `sql` selects."""
    file = scratch / f"packed-{next(_numbers)}.parquet"
    selected = _retyped(database, sql, _SUM, _INSTEAD)
    database.execute(f"COPY ({selected}) TO '{quoted(file)}' (FORMAT parquet)")
    rows = file.read_bytes()
    file.unlink()
    return rows


def unpack(database: duckdb.DuckDBPyConnection, scratch: Path, table: str, packed: Iterable[Rows]) -> None:
    """Make a table of rows that were packed, in their order."""
    with _files(scratch, packed) as files:
        database.execute(f"CREATE TABLE {table} AS {_retyped(database, files, _INSTEAD, _SUM)}")


def add(database: duckdb.DuckDBPyConnection, scratch: Path, table: str, packed: Iterable[Rows]) -> None:
    """Add rows that were packed to a table, which may have more columns."""
    with _files(scratch, packed) as files:
        database.execute(f"INSERT INTO {table} BY NAME {files}")


def unpack_events(
    database: duckdb.DuckDBPyConnection, scratch: Path, events: Collection[str], packed: Iterable[Rows]
) -> None:
    """Make table ``event`` of rows that were packed; `events`: the names of all that are in the logs of the job."""
    create_event(database, fields_of(events))
    add(database, scratch, "event", packed)


@contextlib.contextmanager
def _files(scratch: Path, packed: Iterable[Rows]) -> Iterator[str]:
    """Yield what reads rows, as SQL. Rows of one table may have other columns if their events do."""
    files = []
    for rows in packed:
        files.append(scratch / f"unpacked-{next(_numbers)}.parquet")
        files[-1].write_bytes(rows)
    names = ", ".join(f"'{quoted(file)}'" for file in files)
    yield f"FROM read_parquet([{names}], union_by_name = true)"
    for file in files:
        file.unlink()


def _retyped(database: duckdb.DuckDBPyConnection, sql: str, was: str, becomes: str) -> str:
    types = database.execute(f"DESCRIBE {sql}").fetchall()
    changed = ", ".join(f'CAST("{name}" AS {becomes}) AS "{name}"' for name, kind, *_ in types if kind == was)
    return f"SELECT * REPLACE ({changed}) FROM ({sql})" if changed else f"SELECT * FROM ({sql})"
