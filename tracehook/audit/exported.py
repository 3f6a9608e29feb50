"""Parquet files that ``tracehook export`` wrote, read as a directory of logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from tracehook.audit import lines_table
from tracehook.audit.fields import FIELDS
from tracehook.audit.limits import limits
from tracehook.log.directory import Directory, place_of
from tracehook.log.file import LogFile, LogPart
from tracehook.log.file_name import stem_of
from tracehook.log.lines import LogError, parse_begin
from tracehook.log.participation import Participation
from tracehook.log.ring import RingFile

TABLES: Final = ("event", "process")
_RING_OF: Final = ".ring"  # after the name of a process, for what comes from its ring


def is_exported(path: Path) -> bool:
    """Whether a folder has the tables of an export."""
    return all((path / table).is_dir() for table in TABLES)


def find_exported(path: Path) -> Directory:
    """Return the processes of an export as logs whose lines are not in files of their own.

    What the export left out, lines that are no events, is unknown here. Raises :class:`LogError`.
    """
    with limits(), duckdb.connect() as database:
        try:
            processes = _rows(database, f'SELECT process, file, "begin" FROM {_table(path, "process")}')
            events = _table(path, "event")
            parts = {row["process"]: row for row in _rows(database, _PARTICIPATION.format(events=events))}
            some = any((path / "ending").glob("*/*.parquet"))
            endings = _rows(database, f"FROM {_table(path, 'ending')}") if some else []
        except (duckdb.IOException, duckdb.BinderException, duckdb.InvalidInputException) as problem:
            text = str(problem).partition("\n")[0]
            raise LogError(f"{path}: not what this tracehook exports ({text})") from problem
    ending_of = {row["process"]: row for row in endings}
    found = Directory(path)
    for row in processes:
        name = row["process"]
        found.logs.append(_log(path / row["file"], row["begin"], parts.get(name, {}), ending_of.get(name)))
    if not found.logs:
        raise LogError(f"{path}: an export without any process")
    found.logs.sort(key=place_of)
    return found


def load(database: duckdb.DuckDBPyConnection, path: Path, logs: Sequence[LogFile]) -> None:
    """Fill tables `line` and `source` with the events of these processes."""
    stems = [log.path.relative_to(path).with_name(stem_of(log.path.name)) for log in logs]
    names = [(str(stem), number) for number, stem in enumerate(stems)]
    rows = [(f"{name}{end}", number, bool(end)) for name, number in names for end in ("", _RING_OF)]
    database.executemany("INSERT INTO source (file, process, recovered) VALUES (?, ?, ?)", rows)
    known = {row[0] for row in database.execute(f"DESCRIBE FROM {_table(path, 'event')}").fetchall()}
    # A newer version has columns that an older export lacks.
    of_line = ["said_rank" if name == "rank" else f'"{name}"' if name in known else "NULL" for name in FIELDS]
    database.execute(
        f"INSERT INTO line SELECT process || CASE WHEN recovered THEN '{_RING_OF}' ELSE '' END AS file, "
        f"{', '.join(of_line)} FROM {_table(path, 'event')} "
        "WHERE process IN (SELECT file FROM source)"
    )


_PARTICIPATION: Final = """
SELECT process, bool_or(device IS NOT NULL) AS used_device, bool_or(event = 'trace.end') AS ended,
       list(DISTINCT comm) FILTER (event = 'communicator.pending' AND ranks > 1 AND NOT coalesce(adopted, false))
       AS communicators,
       any_value(said_rank) FILTER (event = 'rank.known' AND said_rank >= 0) AS rank,
       bool_or(event IN ('rehearsal.violation', 'rehearsal.hang')) AS tells_of_ranks
FROM {events} GROUP BY process"""


def _log(path: Path, begin: str, row: dict[str, Any], ending: dict[str, Any] | None) -> LogFile:
    first = parse_begin(path, begin.encode()) if '"schema"' in begin else json.loads(begin)
    headless = "schema" not in first
    log = LogFile(path, [] if headless else [LogPart(path, path, first)], first, bool(row.get("ended")))
    log.headless = headless
    log.participation = Participation(
        bool(row.get("used_device")),
        set(row.get("communicators") or ()),
        row.get("rank"),
        bool(row.get("tells_of_ranks")),
    )
    if ending is not None:
        log.torn, log.complaint = ending["torn"], ending["complaint"] or ""
        if ending["ring"]:
            numbers = (ending[name] or 0 for name in ("dropped", "looked_ns", "signal", "sender", "signal_ns"))
            dropped, looked_ns, signal, sender, signal_ns = numbers
            log.left = RingFile(0, 0, dropped, 0, [], looked_ns, signal, sender, signal_ns)
    return log


def _table(path: Path, table: str) -> str:
    """Return what reads all files of a table, as SQL."""
    depth = "*/*/*" if table == "event" else "*/*"
    files = f"{lines_table.quoted(path / table)}/{depth}.parquet"
    return f"read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"


def _rows(database: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    cursor = database.execute(sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
