"""Parquet files that ``tracehook export`` wrote, read as a directory of logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from tracehook.audit import lines_table
from tracehook.audit.limits import limits
from tracehook.audit.texts import Place
from tracehook.log.directory import Directory, place_of
from tracehook.log.file import LogFile, LogPart
from tracehook.log.file_name import stem_of
from tracehook.log.lines import LogError, parse_begin
from tracehook.log.participation import Participation
from tracehook.log.ring import RingFile

TABLES: Final = ("event", "process")


def is_exported(path: Path) -> bool:
    """Whether a folder has the tables of an export."""
    return all((path / f"{table}.parquet").is_file() for table in TABLES)


def find_exported(path: Path) -> Directory:
    """Return the processes of an export as logs whose lines are not in files of their own.

    What the export left out, lines that are no events, is unknown here. Raises :class:`LogError`.
    """
    with limits(), duckdb.connect() as database:
        try:
            cursor = database.execute(_PROCESSES.format(event=_table(path, "event"), process=_table(path, "process")))
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (duckdb.IOException, duckdb.BinderException, duckdb.InvalidInputException) as problem:
            text = str(problem).partition("\n")[0]
            raise LogError(f"{path}: not what this tracehook exports ({text})") from problem
    if not rows:
        raise LogError(f"{path}: an export without any process")
    return Directory(path, sorted((_log(path / row["file"], row) for row in rows), key=place_of))


class ExportedLogs:
    """The processes of an export, to be read into a database."""

    def __init__(self, path: Path, logs: Sequence[LogFile]) -> None:
        self._events, self._processes = _table(path, "event"), _table(path, "process")
        stems = [log.path.relative_to(path).with_name(stem_of(log.path.name)) for log in logs]
        self._numbers = {str(stem): number for number, stem in enumerate(stems)}

    def survey(self, database: duckdb.DuckDBPyConnection) -> tuple[set[str], dict[int, Place]]:
        """Return which events there are, and the places of the processes."""
        events = database.execute(f"SELECT DISTINCT event FROM {self._events}").fetchall()
        known = database.execute(
            f"SELECT process, rank, world_size FROM {self._processes} WHERE rank IS NOT NULL"
        ).fetchall()
        places = {self._numbers[name]: (rank, size) for name, rank, size in known if name in self._numbers}
        return {event for (event,) in events}, places

    def load(
        self,
        database: duckdb.DuckDBPyConnection,
        fields: Sequence[str],
        ranks: Sequence[int | None],
        shifts: Sequence[int],
    ) -> None:
        """Add these fields of the events of these processes to table ``event``."""
        database.execute("CREATE TEMP TABLE source (name VARCHAR, number INTEGER, its_rank INTEGER, shift_ns BIGINT)")
        rows = [(name, number, ranks[number], shifts[number]) for name, number in self._numbers.items()]
        lines_table.add_rows(database, "source", rows)
        known = {row[0] for row in database.execute(f"DESCRIBE FROM {self._events}").fetchall()}
        # A newer version has columns that an older export lacks.
        stored = lines_table.column_list(
            name for name in fields if name in known and name not in lines_table.OF_PROCESS
        )
        database.execute(
            f"""INSERT INTO event (process, rank, recovered, ns, is_no_event, said_rank, {stored})
                SELECT number, its_rank, recovered, t_ns + shift_ns, false, said_rank, {stored}
                FROM {self._events} JOIN source ON name = process"""
        )
        database.execute("DROP TABLE source")


_PROCESSES: Final = """
SELECT process.*, used_device, communicators, known_rank, tells_of_ranks
FROM {process} AS process LEFT JOIN (
    SELECT process, bool_or(device IS NOT NULL) AS used_device,
           list(DISTINCT comm) FILTER (event = 'communicator.pending' AND ranks > 1 AND NOT coalesce(adopted, false))
           AS communicators,
           any_value(said_rank) FILTER (event = 'rank.known' AND said_rank >= 0) AS known_rank,
           bool_or(event IN ('rehearsal.violation', 'rehearsal.hang')) AS tells_of_ranks
    FROM {event} GROUP BY process) USING (process)"""


def _log(path: Path, row: dict[str, Any]) -> LogFile:
    begin = row["begin"]
    first = parse_begin(path, begin.encode()) if '"schema"' in begin else json.loads(begin)
    headless = "schema" not in first
    log = LogFile(path, [] if headless else [LogPart(path, path, first)], first, row["ended"], row["torn"])
    log.headless, log.complaint = headless, row["complaint"] or ""
    log.participation = Participation(
        bool(row["used_device"]), set(row["communicators"] or ()), row["known_rank"], bool(row["tells_of_ranks"])
    )
    if row["ring"]:
        numbers = (row[name] or 0 for name in ("dropped", "looked_ns", "signal", "sender", "signal_ns"))
        dropped, looked_ns, signal, sender, signal_ns = numbers
        log.left = RingFile(0, 0, dropped, 0, [], looked_ns, signal, sender, signal_ns)
    return log


def _table(path: Path, table: str) -> str:
    """Return what reads a table, as SQL."""
    return f"read_parquet('{lines_table.quoted(path / f'{table}.parquet')}')"
