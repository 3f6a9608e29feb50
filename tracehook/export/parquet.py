"""Logs and rings to Parquet: what is new since the last time, as one batch of files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import duckdb

from tracehook.audit import lines_table
from tracehook.audit.limits import DISK, MEMORY, limits
from tracehook.audit.selection import LATEST, integer
from tracehook.export.batch import Batch
from tracehook.export.cursor import Cursor, Reached, read_cursor
from tracehook.export.lock import locked
from tracehook.log.directory import find_logs
from tracehook.log.file import LogFile, LogPart
from tracehook.log.file_name import part_of, stem_of
from tracehook.log.lines import LogError, whole_lines
from tracehook.log.own_host import lives, name_of_host, own_host
from tracehook.log.text import encodable

SCHEMA: Final = "2.0"
"""Of the files: the second number grows with columns that are added, the first one if one changes its meaning."""

_COPY: Final = 1 << 20
_ASKED: Final = {"log.summed", "rank.known"}  # whose fields tables.sql needs
_NO_JOB: Final = "__HIVE_DEFAULT_PARTITION__"
_BYTES_AT_ONCE: Final = 64 << 20  # of logs: their events are held in memory, and become a file


class Exported(NamedTuple):
    """What one batch added, and what is left."""

    events: int
    logs: int  # that had any
    foreign: int  # lines that are no events
    found: int  # logs, with those that had nothing new
    growing: int  # of them those of processes that run on this host
    elsewhere: int  # logs without an end, of other hosts: nobody knows whether their processes run
    unreadable: list[str]


class _News(NamedTuple):
    """New lines of a log. The last two as in a first line of a part; None: no line stands in a part before."""

    path: Path
    process: int
    recovered: bool
    from_seq: int | None
    after_t_ns: int | None
    reached: int


def export(directory: Path, out: Path, here: bool = False, over: bool = False) -> Exported:
    """Add to `out` what the logs of `directory` have and `out` lacks.

    `here`: only logs of this host. The ring of a process of this host is read when the process has ended, that of
    another host if the job is `over`. Raises :class:`LogError`, also if another process exports to `out` on this host,
    and OSError.
    """
    name = name_of_host()
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / f".lock-{name}"), tempfile.TemporaryDirectory(prefix="tracehook-export-") as scratch:
        batch = Batch(out, name)
        try:
            return _Export(directory, Path(scratch), batch, name, here, over).run()
        finally:
            batch.drop()


class _Export:
    """One batch."""

    def __init__(self, directory: Path, scratch: Path, batch: Batch, name: str, here: bool, over: bool) -> None:
        self._directory = directory
        self._scratch = scratch
        self._batch = batch
        self._name = name
        self._job_is_over = over
        self._growing = self._elsewhere = 0
        self._cursor: Cursor = read_cursor(batch.state())
        found = find_logs(directory, scratch)
        if found.newer:
            raise LogError(found.newer)
        self._unreadable = found.unreadable
        logs = [log for log in found.logs if not here or log.begin.get("host") == own_host()]
        self._logs = sorted(logs, key=lambda log: log.job or "")  # each file is of one job
        self._texts: list[_News] = []
        self._new: list[int] = []  # logs of which nothing was exported before
        self._over: list[int] = []  # logs without an end whose processes do not run any more

    def run(self) -> Exported:
        for number, log in enumerate(self._logs):
            self._take(number, log)
        left = len(self._logs), self._growing, self._elsewhere, self._unreadable
        if not (self._texts or self._new or self._over):
            return Exported(0, 0, 0, *left)
        with limits(), duckdb.connect(str(self._scratch / "export.duckdb")) as database:
            events, foreign = self._write(database)
        self._cursor.batches += 1
        self._batch.commit(self._cursor.as_json())
        return Exported(events, len({text.process for text in self._texts}), foreign, *left)

    # --- what is new ---

    def _take(self, number: int, log: LogFile) -> None:
        """Note what is new of a log."""
        stem = self._name_of(log.path)
        if stem not in self._cursor.logs:
            self._cursor.logs[stem] = Reached()
            self._new.append(number)
        reached = self._cursor.logs[stem]
        first = not reached.parts
        for place, part in enumerate(log.parts):
            is_whole = len(log.parts) == 1 and log.ended and not log.torn
            self._take_part(number, part, reached, place if first else place + 1, is_whole)
        if log.ended or reached.over:
            return
        if log.begin.get("host") != own_host() and not self._job_is_over:
            self._elsewhere += 1
        elif lives(log.begin):
            self._growing += 1
        else:
            reached.over = True
            self._over.append(number)
            if log.left is not None:
                self._texts.append(_News(self._write_ring(number, log), number, True, None, None, reached.seq))

    def _within(self, path: Path) -> Path:
        return path.relative_to(self._directory)

    def _name_of(self, path: Path) -> str:
        """Return what all files of a process are called in the directory."""
        return encodable(str(self._within(path).with_name(stem_of(path.name))))

    def _take_part(self, number: int, part: LogPart, reached: Reached, place: int, is_whole: bool) -> None:
        key = str(part_of(part.path.name))
        begin = reached.parts.get(key, 0)
        text = self._scratch / f"log-{number}-{key}.jsonl"
        if is_whole and not begin:  # nobody writes to it any more
            lines_table.link(text.parent, text.name, part.text)
            size = text.stat().st_size
        else:
            size = _copy_lines(part.text, begin, text)
        reached.parts[key] = begin + size
        if not size:
            return
        first = part.begin if place and not begin else {}
        given = integer(first, "from_seq"), integer(first, "after_t_ns")
        self._texts.append(_News(text, number, False, *given, reached.seq))

    def _write_ring(self, number: int, log: LogFile) -> Path:
        path = self._scratch / f"ring-{number}.jsonl"
        with path.open("w") as out:
            out.writelines(json.dumps(event) + "\n" for event in log.events_left())
        return path

    # --- the files ---

    def _write(self, database: duckdb.DuckDBPyConnection) -> tuple[int, int]:
        """Make the files; return how many events they have, and how many lines are no events."""
        database.execute(f"SET memory_limit = '{MEMORY}'; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        database.execute(f"SET temp_directory = '{lines_table.quoted(self._scratch)}'")
        database.execute(f"SET max_temp_directory_size = '{DISK}'")
        self._make_processes(database)
        events = foreign = 0
        for number, texts in enumerate(_batches(self._texts, self._logs), start=1):
            fields = self._read(database, texts)
            ((more,),) = database.execute("SELECT count(*) FROM line WHERE is_no_event").fetchall()
            foreign += int(more)
            events += self._write_events(database, fields, self._logs[texts[0].process].job, number)
        if self._new:
            self._copy(
                database, "process", "SELECT name AS process, * EXCLUDE (number, new, name) FROM process WHERE new"
            )
        if self._over:
            endings = [_ending(number, self._logs[number]) for number in self._over]
            lines_table.add_rows(database, "ending", endings)
            named = "SELECT job, name AS process, ending.* EXCLUDE (number) FROM ending JOIN process USING (number)"
            self._copy(database, "ending", named)
        return events, foreign

    def _read(self, database: duckdb.DuckDBPyConnection, texts: Sequence[_News]) -> list[str]:
        """Fill table ``fresh`` with the new events of some logs; return the fields that these have."""
        files = [text.path for text in texts]
        try:
            events = _events_in(database, files)
        except duckdb.InvalidInputException:  # a line that is longer than DuckDB takes
            files = [_without_long_lines(file) for file in files]
            events = _events_in(database, files)
        fields = lines_table.fields_of(events | _ASKED)
        database.execute(
            "CREATE OR REPLACE TEMP TABLE source (file INTEGER, process INTEGER, recovered BOOLEAN, from_seq BIGINT, "
            "after_t_ns BIGINT, reached BIGINT)"
        )
        lines_table.add_rows(database, "source", [(file, *text[1:]) for file, text in enumerate(texts)])
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE line AS SELECT *, file_index AS file, {lines_table.is_no_event(fields)} "
            f"AS is_no_event FROM {lines_table.lines_of(files, fields)}"
        )
        database.execute(_sql())
        for process, last in database.execute(
            "SELECT process, max(greatest(coalesce(seq, 0), coalesce(until_seq, 0))) FROM fresh GROUP BY process"
        ).fetchall():
            reached = self._cursor.logs[self._name_of(self._logs[process].path)]
            reached.seq = max(reached.seq, last)
        return fields

    def _write_events(
        self, database: duckdb.DuckDBPyConnection, fields: Collection[str], job: str | None, number: int
    ) -> int:
        """Write table ``fresh``, which is of one job, as a file; return how many events it has."""
        # As Hive has it, and DuckDB writes it.
        folder = self._batch.folder / "event" / f"job={_NO_JOB if job is None else quote(job, safe='')}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self._name}-{self._cursor.batches + 1:06}-{number}.parquet"
        # One process after another, so a reader of some processes passes most of a file by.
        ((rows,),) = database.execute(
            f"COPY (SELECT process, host, pid, rank, time, recovered, said_rank, {lines_table.all_columns(fields)} "
            f"FROM exported ORDER BY number, t_ns, seq) TO '{lines_table.quoted(file)}' "
            f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{tracehook: '{SCHEMA}'}})"
        ).fetchall()
        return int(rows)

    def _copy(self, database: duckdb.DuckDBPyConnection, table: str, sql: str) -> None:
        """Write what `sql` selects as files of a table."""
        database.execute(
            f"COPY ({sql}) TO '{lines_table.quoted(self._batch.folder / table)}' (FORMAT parquet, COMPRESSION zstd, "
            f"PARTITION_BY (job), FILENAME_PATTERN '{self._name}-{self._cursor.batches + 1:06}-{{i}}', "
            f"KV_METADATA {{tracehook: '{SCHEMA}'}})"
        )

    def _make_processes(self, database: duckdb.DuckDBPyConnection) -> None:
        database.execute(
            "CREATE TABLE process (number INTEGER, new BOOLEAN, name VARCHAR, file VARCHAR, job VARCHAR, "
            "attempt INTEGER, rank INTEGER, world_size INTEGER, host VARCHAR, pid BIGINT, began TIMESTAMP, "
            'began_ns BIGINT, "begin" VARCHAR)'
        )
        new = set(self._new)
        rows = []
        for number, log in enumerate(self._logs):
            begin = log.begin
            host = begin.get("host")
            rows.append(
                (
                    *(number, number in new, self._name_of(log.path), encodable(str(self._within(log.path)))),
                    *(log.job, integer(begin, "attempt")),
                    *(log.rank, integer(begin, "world_size"), None if host is None else encodable(str(host))),
                    integer(begin, "pid"),
                    *(log.began, integer(begin, "t_ns"), encodable(json.dumps(begin))),
                )
            )
        lines_table.add_rows(database, "process", rows)
        database.execute(
            "CREATE TABLE ending (number INTEGER, ring BOOLEAN, dropped UBIGINT, looked_ns BIGINT, signal INTEGER, "
            "sender BIGINT, signal_ns BIGINT, torn BOOLEAN, complaint VARCHAR)"
        )


def _batches(texts: Sequence[_News], logs: Sequence[LogFile]) -> Iterator[list[_News]]:
    """Yield the texts, some at a time: all texts of a process together, and only processes of one job."""
    batch: list[_News] = []
    size = 0
    for _, its in groupby(texts, key=lambda text: text.process):
        more = list(its)
        job = logs[more[0].process].job
        if batch and (size >= _BYTES_AT_ONCE or logs[batch[0].process].job != job):
            yield batch
            batch, size = [], 0
        batch += more
        size += sum(text.path.stat().st_size for text in more)
    if batch:
        yield batch


def _events_in(database: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> set[str]:
    lines = lines_table.lines_of(files, ("event", "t_ns"))
    return {event for (event,) in database.execute(f"SELECT DISTINCT event FROM {lines}").fetchall()} - {None}


def _sql() -> str:
    return resources.files("tracehook.export").joinpath("tables.sql").read_text()


def _ending(number: int, log: LogFile) -> tuple[object, ...]:
    """Return what the ring of a log and the end of its text tell, as a row."""
    of_ring: tuple[int | None, ...] = (None,) * 5
    if (left := log.left) is not None:
        looked_ns, signal_ns = (time if 0 < time < LATEST else None for time in (left.looked_ns, left.signal_ns))
        of_ring = min(left.dropped, LATEST), looked_ns, left.signal or None, left.sender or None, signal_ns
    return number, left is not None, *of_ring, log.torn, encodable(log.complaint) or None


def _copy_lines(source: Path, begin: int, target: Path) -> int:
    """Copy the whole lines of `source` from byte `begin` on; return how many bytes these are."""
    size = whole = 0
    with source.open("rb") as text, target.open("wb") as out:
        text.seek(begin)
        while data := text.read(_COPY):
            out.write(data)
            if (newline := data.rfind(b"\n")) >= 0:
                whole = size + newline + 1
            size += len(data)
        out.truncate(whole)
    return whole


def _without_long_lines(text: Path) -> Path:
    clean = text.with_name(f"clean-{text.name}")
    with clean.open("wb") as out:
        out.writelines(line for line in whole_lines(text) if line is not None)
    return clean
