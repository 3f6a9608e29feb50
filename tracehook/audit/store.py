"""The logs of a directory as tables of DuckDB: ``process``, ``event``, and what tables.sql makes of them.

``ns`` is the time of an event in nanoseconds since the first process of the job began: on one host by the monotonic
clock, between hosts by the wall clock at the beginning of the logs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Self

from tracehook.audit import lines_table
from tracehook.audit.alive import still_runs
from tracehook.audit.fields import BEGIN
from tracehook.audit.limits import limits, open_database
from tracehook.audit.selection import LATEST, NEWEST, Selection, integer, select, shifts
from tracehook.audit.split import SharedTexts, Workers
from tracehook.audit.texts import NOWHERE, Place, Texts, fill, size_of
from tracehook.log.directory import Directory, find_logs
from tracehook.log.file import LogFile
from tracehook.log.lines import LogError, whole_number
from tracehook.log.ring import RingHeader
from tracehook.log.tables import OPERATIONS
from tracehook.log.text import encodable, number_in

_NAMED_LINES = 5
_SMALL = 8 << 20  # bytes of logs: below that more threads of the database cost more than they do


class Store:
    """Reads a directory into a database of its own, which goes with it. A context manager; for one thread.

    `left_out` says which jobs are not looked at, if nobody chose one. Raises :class:`LogError` if the directory has no
    log, or one of a newer schema: then the others may mean something else too.
    `workers` read the logs, if there are some.
    """

    def __init__(self, path: Path, selection: Selection = NEWEST, workers: Workers | None = None) -> None:
        self._workers = workers
        self._stack = contextlib.ExitStack()
        self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tracehook-audit-")))
        try:
            self.directory: Directory = find_logs(path, self._scratch)
            if self.directory.newer:
                raise LogError(self.directory.newer)
            selected = select(self.directory, selection)
            self.directory.logs, self.left_out = selected.logs, selected.left_out
            with limits():
                self._database = self._stack.enter_context(open_database(self._scratch / "audit.duckdb"))
                self._database.execute("SET preserve_insertion_order = false")
                self._load()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget everything."""
        self._stack.close()

    def rows(self, sql: str, parameters: Sequence[object] | dict[str, object] = ()) -> list[dict[str, Any]]:
        """Return what `sql` selects, a dict a row. Raises :class:`TooMuch` if that takes more room than it may."""
        with limits():
            cursor = self._database.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def keep(self, table: str, sql: str) -> int:
        """Make what `sql` selects a table, in place of the one that was kept before; return the number of its rows."""
        with limits():
            ((count,),) = self._database.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {sql}").fetchall()
            return int(count)

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that `sql` selects, without holding all of them. One stream at a time."""
        with limits():
            cursor = self._database.execute(sql, parameters)
            while rows := cursor.fetchmany(10_000):
                yield from rows

    def events(self) -> set[str]:
        """Return the names of all events in the logs."""
        return {row["event"] for row in self.rows("SELECT DISTINCT event FROM event")}

    def use_macros(self) -> None:
        """Define the SQL functions of macros.sql."""
        self._database.execute(_sql("macros.sql"))

    # --- loading ---

    def _load(self) -> None:
        self._read(self.directory.logs, shifts(self.directory.logs))
        self._database.execute("CREATE TABLE unreadable (message VARCHAR)")
        messages = [(encodable(message),) for message in self.directory.unreadable]
        lines_table.add_rows(self._database, "unreadable", messages)
        # What has to be equal of a collective's buffers.
        self._database.execute("CREATE TABLE operation (operation VARCHAR, send VARCHAR, receive VARCHAR)")
        lines_table.add_rows(self._database, "operation", OPERATIONS)
        self._database.execute(_sql("tables.sql"))

    def _read(self, logs: Sequence[LogFile], clocks: Sequence[int]) -> None:
        database = self._database
        if sum(size_of(part.text) for log in logs for part in log.parts) < _SMALL:
            database.execute("SET threads = 1")
        source: SharedTexts | Texts
        if self._workers is not None:
            source = SharedTexts(logs, clocks, self._scratch, self._workers)
        else:
            source = Texts(logs, self._scratch)
        _, _, places = fill(database, source, logs, clocks)
        self._make_processes(logs, places, clocks)

    def _make_processes(self, logs: Sequence[LogFile], places: Mapping[int, Place], clocks: Sequence[int]) -> None:
        database = self._database
        database.execute(
            "CREATE TABLE process (process INTEGER PRIMARY KEY, file VARCHAR, job VARCHAR, attempt INTEGER, "
            "rank INTEGER, world_size INTEGER, pid BIGINT, "
            f"{', '.join(f'{name} VARCHAR' for name in BEGIN)}, began TIMESTAMP, "
            "began_ns BIGINT, shift_ns BIGINT, ended BOOLEAN, runs BOOLEAN, torn BOOLEAN, ring BOOLEAN, "
            "ring_dropped UBIGINT, alive_ns BIGINT, signal INTEGER, sender BIGINT, signal_ns BIGINT, "
            "foreign_lines INTEGER, foreign_at VARCHAR, complaint VARCHAR, from_seq BIGINT, proof_ns BIGINT, "
            "log_stopped VARCHAR, log_stopped_ns BIGINT)"
        )
        foreign = self._foreign()
        rows = []
        for process, log in enumerate(logs):
            begin, bad = log.begin, foreign.get((process, False), 0)
            if damaged := foreign.get((process, True)):
                log.complaint = log.complaint or f"{damaged} records of its ring are damaged"
            named = _foreign_lines(log) if bad else ()
            ring = log.left.header if log.left is not None else None
            rank, world_size = places.get(process, NOWHERE)
            rows.append(
                (
                    *(process, encodable(log.path.name), log.job, integer(begin, "attempt"), rank),
                    *(integer(begin, "world_size") or world_size, integer(begin, "pid")),
                    *(_text(begin.get(name)) for name in BEGIN),
                    *(log.began, integer(begin, "t_ns"), clocks[process], log.ended, still_runs(log)),
                    *(log.torn, ring is not None),
                    min(ring.dropped, LATEST) if ring is not None else 0,
                    ring.looked_ns if ring is not None and 0 < ring.looked_ns < LATEST else None,
                    *_signal(ring),
                    *(bad, ", ".join(islice(named, _NAMED_LINES)), encodable(log.complaint)),
                    *_proof(log, clocks[process]),
                    *_stop(ring, clocks[process]),
                )
            )
        lines_table.add_rows(database, "process", rows)
        database.execute("CREATE TABLE gone (process INTEGER, comm_id BIGINT, windows INTEGER, placements BOOLEAN)")
        gone = [row for process, log in enumerate(logs) for row in _gone(process, log.begin)]
        lines_table.add_rows(database, "gone", gone)

    def _foreign(self) -> dict[tuple[int, bool], int]:
        """Count, for each process, the lines that are no events, and the records of its ring; and take them out."""
        found = self._database.execute(
            "SELECT process, recovered, count(*) FROM event WHERE is_no_event GROUP BY ALL"
        ).fetchall()
        self._database.execute("DELETE FROM event WHERE is_no_event")
        counts = {(process, recovered): count for process, recovered, count in found}
        for process, log in enumerate(self.directory.logs):
            if log.cut_event and counts.get((process, False)):
                counts[process, False] -= 1  # the torn last line is said of by itself
        return counts


def _foreign_lines(log: LogFile) -> Iterator[str]:
    """Yield the numbers of the lines that are no events. The last one, if it is torn, is not looked at."""
    for place, part in enumerate(log.parts):
        of_part = f" of {part.path.name}" if place else ""
        yield from (f"{number}{of_part}" for number, event in part.events(is_first=place == 0) if event is None)


def _proof(log: LogFile, shift_ns: int) -> tuple[int, int | None]:
    """Return the number of the first event from which on the log tells all; its time, if the log had begun before."""
    begin = log.begin if log.parts else {}
    moment = integer(begin, "part_t_ns")
    return integer(begin, "from_seq") or 1, None if moment is None else moment + shift_ns


def _gone(process: int, begin: dict[str, Any]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield what the log no longer tells of communicators: tries to register windows, whether first uses of them."""
    windows, placements = begin.get("windows_gone"), begin.get("placements_gone")
    windows = windows if isinstance(windows, dict) else {}
    placements = placements if isinstance(placements, list) else []
    for comm in {*map(str, placements), *windows}:
        if (number := number_in(comm)) is not None:
            yield process, number, whole_number(windows.get(comm), 1 << 31) or 0, number in placements


def _signal(ring: RingHeader | None) -> tuple[int | None, int | None, int | None]:
    """Return which signal ended a process, who sent it, and when."""
    if ring is None or not ring.signal:
        return None, None, None
    return ring.signal, ring.sender or None, ring.signal_ns if ring.signal_ns < LATEST else None


def _stop(ring: RingHeader | None, shift_ns: int) -> tuple[str | None, int | None]:
    """Return why a process could not write its log any more, and since when."""
    if ring is None or not ring.log_error:
        return None, None
    why = os.strerror(ring.log_error) if ring.log_error > 0 else "stderr of the process says why"
    return why, ring.log_stopped_ns + shift_ns if ring.log_stopped_ns < LATEST else None


def _text(value: object) -> str | None:
    if isinstance(value, list):
        return encodable(",".join(map(str, value)))
    return None if value is None else encodable(str(value))


def _sql(name: str) -> str:
    return files("tracehook.audit").joinpath(name).read_text(encoding="utf-8")
