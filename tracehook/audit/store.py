"""The logs of a directory as tables of DuckDB: ``process``, ``event``, and what tables.sql makes of them.

``ns`` is the time of an event in nanoseconds since the first process of the job began: on one host by the monotonic
clock, between hosts by the wall clock at the beginning of the logs.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from tracehook.audit.fields import BEGIN, FIELDS
from tracehook.audit.selection import LATEST, NEWEST, Selection, integer, select, shifts
from tracehook.log.directory import Directory, find_logs
from tracehook.log.file import LogFile
from tracehook.log.lines import LONGEST_LINE, LogError, parse_lines, whole_lines
from tracehook.log.ring import RingFile
from tracehook.log.tables import OPERATIONS
from tracehook.log.text import encodable

_FILES_AT_ONCE = 64
_MEMORY = "1200MB"
_DISK = "8GB"  # beyond that memory, for one question
_NAMED_LINES = 5
_SMALL = 8 << 20  # bytes of logs: below that more threads of the database cost more than they do
# Have no place in the sequence of events.
_OWN_SEQ = ("trace.begin", "trace.end", "log.dropped", "communicator.calls", "communicator.group", "rank.known")

Progress = Callable[[str, float], None]


def quiet(_what: str, _done: float) -> None:
    """Show no progress."""


class TooMuch(LogError):
    """What was asked takes more memory or disk than it may."""


class Store:
    """Reads a directory into a database of its own, which goes with it. A context manager; for one thread.

    `left_out` says which jobs are not looked at, if nobody chose one. Raises :class:`LogError` if the directory has no
    log, those of several runs under one id, or one of a newer schema: then the others may mean something else too.
    """

    def __init__(self, path: Path, selection: Selection = NEWEST, progress: Progress = quiet) -> None:
        self._stack = contextlib.ExitStack()
        self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tracehook-audit-")))
        try:
            self.directory: Directory = find_logs(path, self._scratch)
            if self.directory.newer:
                raise LogError(self.directory.newer)
            selected = select(self.directory, selection)
            self.directory.logs, self.left_out = selected.logs, selected.left_out
            self._database = duckdb.connect(str(self._scratch / "audit.duckdb"))
            self._stack.callback(self._database.close)
            with _limits():
                self._load(progress)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget everything."""
        self._stack.close()

    def rows(self, sql: str, parameters: Sequence[object] | dict[str, object] = ()) -> list[dict[str, Any]]:
        """Return what `sql` selects, a dict a row. Raises :class:`TooMuch` if that takes more room than it may."""
        with _limits():
            cursor = self._database.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def keep(self, table: str, sql: str) -> int:
        """Make what `sql` selects a table, in place of the one that was kept before; return the number of its rows."""
        with _limits():
            ((count,),) = self._database.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {sql}").fetchall()
            return int(count)

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that `sql` selects, without holding all of them. One stream at a time."""
        with _limits():
            cursor = self._database.execute(sql, parameters)
            while rows := cursor.fetchmany(10_000):
                yield from rows

    def use_macros(self) -> None:
        """Define the SQL functions of macros.sql."""
        self._database.execute(_sql("macros.sql"))

    # --- loading ---

    def _load(self, progress: Progress) -> None:
        database, logs = self._database, self.directory.logs
        database.execute(f"SET memory_limit = '{_MEMORY}'; SET preserve_insertion_order = false")
        database.execute("SET enable_progress_bar = false")  # DuckDB would draw it on stdout
        database.execute("PRAGMA disable_checkpoint_on_shutdown")  # the file goes with the store
        database.execute(f"SET temp_directory = '{_quoted(self._scratch)}'")
        database.execute(f"SET max_temp_directory_size = '{_DISK}'")
        database.execute(f"CREATE TABLE line (file VARCHAR, {_columns('{} {}')})")
        if sum(_size(log.text) for log in logs if log.text is not None) < _SMALL:
            database.execute("SET threads = 1")
        database.execute("CREATE TABLE source (file VARCHAR, process INTEGER, recovered BOOLEAN)")
        texts: list[tuple[Path, int, bool]] = []
        for process, log in enumerate(logs):
            if log.text is not None:
                texts.append((self._link(process, log.text), process, False))
            if log.left is not None and (log.left.records or log.left.slots):
                texts.append((self._write_ring(process, log), process, True))
        for start in range(0, len(texts), _FILES_AT_ONCE):
            progress("reading", start / len(texts))
            self._read(texts[start : start + _FILES_AT_ONCE])
        self._make_processes(logs)
        database.execute("CREATE TABLE unreadable (message VARCHAR)")
        for message in self.directory.unreadable:
            database.execute("INSERT INTO unreadable VALUES (?)", [encodable(message)])
        database.execute("CREATE TABLE operation (operation VARCHAR, send VARCHAR, receive VARCHAR)")
        database.executemany("INSERT INTO operation VALUES (?, ?, ?)", OPERATIONS)
        progress("ordering", 0.0)
        database.execute(_sql("tables.sql"))
        self._refuse_several_runs()

    def _read(self, texts: Sequence[tuple[Path, int, bool]]) -> None:
        try:
            self._read_files([text for text, _, _ in texts])
            self._note_sources(texts)
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error:
            if len(texts) > 1:
                for one in texts:
                    self._read([one])
                return
            # A line that is longer than DuckDB takes. Without it the file can be read.
            text, process, recovered = texts[0]
            clean = self._without_long_lines(text, process)
            try:
                self._read_files([clean])
            except duckdb.Error as problem:
                log = self.directory.logs[process]
                log.complaint = f"{log.path.name}: cannot be read ({_first_line(problem)})"
                return
            self._note_sources([(clean, process, recovered)])

    def _note_sources(self, texts: Sequence[tuple[Path, int, bool]]) -> None:
        rows = [(str(text), process, recovered) for text, process, recovered in texts]
        self._database.executemany("INSERT INTO source VALUES (?, ?, ?)", rows)

    def _read_files(self, paths: Sequence[Path]) -> None:
        names = ", ".join(f"'{_quoted(path)}'" for path in paths)
        typed = _columns("{}: '{}'")
        self._database.execute(
            f"INSERT INTO line SELECT filename, {_columns('{}')} FROM read_json([{names}], "
            f"format = 'newline_delimited', compression = 'none', ignore_errors = true, filename = true, "
            f"hive_partitioning = false, "
            f"columns = {{{typed}}})"
        )

    def _link(self, process: int, text: Path) -> Path:
        """Return another name of the file: DuckDB takes `*`, `?` and `[` in a name for a pattern."""
        link = self._scratch / f"log-{process}.jsonl"
        link.symlink_to(text.absolute())
        return link

    def _without_long_lines(self, text: Path, process: int) -> Path:
        clean = self._scratch / f"clean-{process}.jsonl"
        with clean.open("wb") as out:
            out.writelines(line for line in whole_lines(text) if line is not None)
        log = self.directory.logs[process]
        log.complaint = f"{log.path.name}: a line is longer than {LONGEST_LINE >> 20} MiB, and was left out"
        return clean

    def _write_ring(self, process: int, log: LogFile) -> Path:
        path = self._scratch / f"ring-{process}.jsonl"
        with path.open("w") as out:
            out.writelines(json.dumps(event) + "\n" for event in log.events_left())
        return path

    def _make_processes(self, logs: Sequence[LogFile]) -> None:
        database = self._database
        database.execute(
            "CREATE TABLE process (process INTEGER PRIMARY KEY, file VARCHAR, job VARCHAR, attempt INTEGER, "
            "rank INTEGER, world_size INTEGER, pid BIGINT, "
            f"{', '.join(f'{name} VARCHAR' for name in BEGIN)}, began TIMESTAMP, "
            "began_ns BIGINT, shift_ns BIGINT, ended BOOLEAN, torn BOOLEAN, ring BOOLEAN, ring_dropped UBIGINT, "
            "alive_ns BIGINT, signal INTEGER, sender BIGINT, signal_ns BIGINT, "
            "foreign_lines INTEGER, foreign_at VARCHAR, complaint VARCHAR)"
        )
        foreign = self._foreign()
        places = self._places()
        shift_of = shifts(logs)
        rows = []
        for process, log in enumerate(logs):
            begin, bad = log.begin, foreign.get((process, False), 0)
            if damaged := foreign.get((process, True)):
                log.complaint = log.complaint or f"{damaged} records of its ring are damaged"
            named = _foreign_lines(log.text) if bad and log.text is not None else ()
            rank, world_size = places.get(process, (None, None)) if log.rank is None else (log.rank, None)
            rows.append(
                (
                    *(process, encodable(log.path.name), log.job, integer(begin, "attempt"), rank),
                    *(integer(begin, "world_size") or world_size, integer(begin, "pid")),
                    *(_text(begin.get(name)) for name in BEGIN),
                    *(log.began, integer(begin, "t_ns"), shift_of[process], log.ended, log.torn, log.left is not None),
                    min(log.left.dropped, LATEST) if log.left is not None else 0,
                    log.left.looked_ns if log.left is not None and 0 < log.left.looked_ns < LATEST else None,
                    *_signal(log.left),
                    *(bad, ", ".join(map(str, islice(named, _NAMED_LINES))), encodable(log.complaint)),
                )
            )
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO process VALUES ({marks})", rows)

    def _places(self) -> dict[int, tuple[int, int]]:
        """Return rank and number of ranks of each process that knew them only from its first group."""
        found = self._database.execute(
            "SELECT process, any_value(line.rank), any_value(line.world_size) FROM line JOIN source USING (file) "
            "WHERE event = 'rank.known' AND line.rank >= 0 GROUP BY process"
        ).fetchall()
        return {process: (rank, world_size) for process, rank, world_size in found}

    def _foreign(self) -> dict[tuple[int, bool], int]:
        """Count, for each process, the lines that are no events, and the records of its ring; and take them out."""
        own = ", ".join(f"'{name}'" for name in _OWN_SEQ)
        whole = [name for name, kind in FIELDS.items() if kind in ("BIGINT", "UBIGINT")]
        bad = (
            f"event IS NULL OR event[1] IN ('{{', '[') OR t_ns IS NULL OR t_ns NOT BETWEEN 0 AND {LATEST} "
            f"OR (event NOT IN ({own}) AND (seq IS NULL OR seq NOT BETWEEN 1 AND {LATEST})) "
            f"OR us NOT BETWEEN 0 AND {LATEST} OR "
        ) + " OR ".join(f"{name} NOT BETWEEN -1 AND {LATEST}" for name in whole)
        found = self._database.execute(
            f"SELECT process, recovered, count(*) FROM line JOIN source USING (file) WHERE {bad} GROUP BY ALL"
        ).fetchall()
        self._database.execute(f"DELETE FROM line WHERE {bad}")
        counts = {(process, recovered): count for process, recovered, count in found}
        for process, log in enumerate(self.directory.logs):
            if log.cut_event and counts.get((process, False)):
                counts[process, False] -= 1  # the torn last line is said of by itself
        return counts

    def _refuse_several_runs(self) -> None:
        # Jobs that torchrun starts again count their attempts; of others a second life of a rank is another run.
        twice = self.rows(
            """SELECT * FROM (
                 SELECT rank, began, lag(began) OVER w AS before, first_ns, lag(last_ns) OVER w AS last
                 FROM process WHERE rank IS NOT NULL AND communicators > 0 AND (attempt IS NULL OR job IS NULL)
                 WINDOW w AS (PARTITION BY job, rank ORDER BY first_ns))
               WHERE first_ns > last ORDER BY began LIMIT 1"""
        )
        for row in twice:
            raise LogError(
                f"{self.directory.path}: holds several runs (rank {row['rank']} began at {row['before']} and again at "
                f"{row['began']}, UTC) under one id; choose with --since; keep one directory a run, or set "
                "SYMM_REGISTER_JOB for each"
            )


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as problem:
        raise TooMuch(f"it needs more than {_MEMORY} of memory and {_DISK} of disk, or the disk is full") from problem
    except duckdb.IOException as problem:
        raise LogError(f"{tempfile.gettempdir()}: {_first_line(problem)}") from problem
    except duckdb.Error as problem:
        raise LogError(f"please report this, with the logs: {_first_line(problem)}") from problem
    except RuntimeError as problem:
        if str(problem) == "Query interrupted":  # DuckDB's answer to a signal handler that raised
            raise KeyboardInterrupt from problem
        raise


def _columns(form: str) -> str:
    """Return the columns of table ``line`` in a form of name and type. Some are called as words of SQL are."""
    return ", ".join(form.format(f'"{name}"', kind) for name, kind in FIELDS.items())


def _foreign_lines(text: Path) -> Iterator[int]:
    """Yield the numbers of the lines that are no events. The last one, if it is torn, is not looked at."""
    return (number for number, event in parse_lines(whole_lines(text)) if event is None)


def _signal(left: RingFile | None) -> tuple[int | None, int | None, int | None]:
    """Return which signal ended a process, who sent it, and when."""
    if left is None or not left.signal:
        return None, None, None
    return left.signal, left.sender or None, left.signal_ns if left.signal_ns < LATEST else None


def _text(value: object) -> str | None:
    if isinstance(value, list):
        return encodable(",".join(map(str, value)))
    return None if value is None else encodable(str(value))


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # reading it says why
        return 0


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _sql(name: str) -> str:
    return files("tracehook.audit").joinpath(name).read_text()
