"""The texts of logs, and what their rings still have, into table ``event``.

They are read twice: first only which events there are, then the fields that these events have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import duckdb

from tracehook.audit import lines_table
from tracehook.audit.limits import first_line
from tracehook.audit.selection import LATEST, integer
from tracehook.log.file import LogFile
from tracehook.log.lines import LONGEST_LINE, whole_lines

_BYTES_AT_ONCE: Final = 512 << 20  # DuckDB stores what is added twice, unless it fills whole groups of rows

Place = tuple[int | None, int | None]  # rank and number of ranks
NOWHERE: Final[Place] = (None, None)

# What the ring still had, and the file has too: killed between writing a line and letting go of it.
_LOGGED_TOO: Final = """
DELETE FROM event WHERE recovered AND NOT is_no_event AND EXISTS (
    FROM event AS logged WHERE NOT logged.recovered AND NOT logged.is_no_event AND logged.process = event.process
      AND (logged.seq = event.seq OR (logged.event = 'log.summed' AND logged.until_seq >= event.seq)))"""


class _Text(NamedTuple):
    """A file to read. What comes not after the two numbers also stands in the part before it."""

    path: Path
    process: int
    recovered: bool
    from_seq: int | None = None
    after_t_ns: int | None = None


class Texts:
    """The logs of a directory, to be read into a database."""

    def __init__(self, logs: Sequence[LogFile], scratch: Path) -> None:
        self._logs = logs
        self._scratch = scratch
        self._texts = list(self._find())

    def survey(self, database: duckdb.DuckDBPyConnection) -> tuple[set[str], dict[int, Place]]:
        """Return which events there are, and the places of processes whose launcher told none (`rank.known`)."""
        fields = ("event", "t_ns", "rank", "world_size")
        events: set[str] = set()
        places: dict[int, Place] = {}

        def look(texts: Sequence[_Text]) -> None:
            found = database.execute(
                f"""SELECT event, CASE WHEN event = 'rank.known' THEN file_index END AS file,
                           any_value((rank, world_size)) FILTER (rank >= 0 AND t_ns BETWEEN 0 AND {LATEST})
                    FROM {lines_table.lines_of([text.path for text in texts], fields)}
                    WHERE event IS NOT NULL GROUP BY ALL"""
            ).fetchall()
            for event, file, place in found:
                events.add(event)
                if file is not None and place is not None:
                    places.setdefault(texts[file].process, place)

        self._texts = self._each(look)
        return events, places

    def load(
        self,
        database: duckdb.DuckDBPyConnection,
        fields: Sequence[str],
        ranks: Sequence[int | None],
        shifts: Sequence[int],
    ) -> None:
        """Add what the lines have of these fields to table ``event``. Those that are no events are marked."""
        database.execute(
            "CREATE TEMP TABLE source (file INTEGER, process INTEGER, rank INTEGER, shift_ns BIGINT, "
            "recovered BOOLEAN, from_seq BIGINT, after_t_ns BIGINT)"
        )

        def add(texts: Sequence[_Text]) -> None:
            database.execute("DELETE FROM source")
            rows = [
                (file, text.process, ranks[text.process], shifts[text.process], *text[2:])
                for file, text in enumerate(texts)
            ]
            lines_table.add_rows(database, "source", rows)
            stored = lines_table.column_list(name for name in fields if name not in lines_table.OF_PROCESS)
            database.execute(
                f"""INSERT INTO event (process, rank, recovered, ns, is_no_event, said_rank, {stored})
                    SELECT process, source.rank, recovered, CASE WHEN NOT is_no_event THEN t_ns + shift_ns END,
                           is_no_event, line.rank, {stored}
                    FROM (SELECT *, file_index, {lines_table.is_no_event(fields)} AS is_no_event
                          FROM {lines_table.lines_of([text.path for text in texts], fields)}) AS line
                    JOIN source ON file = file_index
                    -- A part of a log begins with lines that the part before has too.
                    WHERE is_no_event OR from_seq IS NULL
                       OR (event != 'trace.begin'
                           AND CASE WHEN seq IS NULL THEN t_ns > after_t_ns ELSE seq >= from_seq END)"""
            )

        self._each(add)
        database.execute("DROP TABLE source")
        database.execute(_LOGGED_TOO)

    def _find(self) -> Iterator[_Text]:
        for process, log in enumerate(self._logs):
            for place, part in enumerate(log.parts):
                link = lines_table.link(self._scratch, f"log-{process}-{place}.jsonl", part.text)
                first = part.begin if place else {}
                yield _Text(link, process, False, integer(first, "from_seq"), integer(first, "after_t_ns"))
            if log.left is not None and (log.left.records or log.left.slots):
                yield _Text(self._write_ring(process, log), process, True)

    def _write_ring(self, process: int, log: LogFile) -> Path:
        path = self._scratch / f"ring-{process}.jsonl"
        with path.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(event) + "\n" for event in log.events_left())
        return path

    def _each(self, action: Callable[[Sequence[_Text]], None]) -> list[_Text]:
        """Do something with all texts, some at a time; return those with which it could be done."""
        done: list[_Text] = []
        taken = 0
        while taken < len(self._texts):
            some = self._some(taken)
            done += self._attempt(some, action)
            taken += len(some)
        return done

    def _some(self, start: int) -> list[_Text]:
        size = 0
        for count, text in enumerate(self._texts[start:], start=1):
            size += size_of(text.path)
            if size >= _BYTES_AT_ONCE:
                return self._texts[start : start + count]
        return self._texts[start:]

    def _attempt(self, texts: list[_Text], action: Callable[[Sequence[_Text]], None]) -> list[_Text]:
        try:
            action(texts)
            return texts
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error:
            if len(texts) > 1:
                middle = len(texts) // 2
                return [*self._attempt(texts[:middle], action), *self._attempt(texts[middle:], action)]
        # A line that is longer than DuckDB takes. Without it the file can be read.
        (text,) = texts
        clean = text._replace(path=self._without_long_lines(text))
        try:
            action([clean])
        except duckdb.Error as problem:
            log = self._logs[text.process]
            log.complaint = f"{log.path.name}: cannot be read ({first_line(problem)})"
            return []
        return [clean]

    def _without_long_lines(self, text: _Text) -> Path:
        clean = text.path.with_name(f"clean-{text.path.name}")
        with clean.open("wb") as out:
            out.writelines(line for line in whole_lines(text.path) if line is not None)
        log = self._logs[text.process]
        log.complaint = f"{log.path.name}: a line is longer than {LONGEST_LINE >> 20} MiB, and was left out"
        return clean


class Source(Protocol):
    """Where the lines of logs come from: :class:`Texts`, or tasks that read them."""

    def survey(self, database: duckdb.DuckDBPyConnection) -> tuple[set[str], dict[int, Place]]:
        """Return what :meth:`Texts.survey` does."""

    def load(
        self,
        database: duckdb.DuckDBPyConnection,
        fields: Sequence[str],
        ranks: Sequence[int | None],
        shifts: Sequence[int],
    ) -> None:
        """Do what :meth:`Texts.load` does."""


def fill(
    database: duckdb.DuckDBPyConnection, source: Source, logs: Sequence[LogFile], shifts: Sequence[int]
) -> tuple[set[str], list[str], dict[int, Place]]:
    """Make table ``event`` of these logs; return which events and fields it has, and the places of the processes."""
    events, places = source.survey(database)
    places |= {process: (log.rank, None) for process, log in enumerate(logs) if log.rank is not None}
    fields = lines_table.fields_of(events)
    lines_table.create_event(database, fields)
    source.load(database, fields, [places.get(process, NOWHERE)[0] for process in range(len(logs))], shifts)
    return events, fields, places


def size_of(file: Path) -> int:
    """Return the bytes of a file; 0 if it cannot be read."""
    try:
        return file.stat().st_size
    except OSError:  # reading it says why
        return 0
