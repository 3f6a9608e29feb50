"""The tasks of an audit that is split: each has a database of its own, reads some rows, and applies some rules.

``read`` makes events of the lines of some logs. ``judge_processes`` makes all tables of them, and applies the rules
that ask about one process. ``judge_communicators`` applies those that ask about one communicator: all rows of it, of
all processes. What lies between two tasks is Parquet. split.py starts them, and joins what is small.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import tracehook
from tracehook.audit import lines_table, rows
from tracehook.audit.fields import FIELDS
from tracehook.audit.finding import Finding
from tracehook.audit.limits import limits
from tracehook.audit.rows import Rows
from tracehook.audit.rules import apply_rules
from tracehook.audit.store import Store, quiet
from tracehook.log import packing
from tracehook.log.directory import Directory
from tracehook.log.file import LogFile, LogPart
from tracehook.log.lines import LogError

_numbers = count()
# What rules about the job, and the analysis of calls, ask about: of which table which rows, if a log has that event.
FOR_THE_JOB: Final = (
    ("process", "true", ""),
    ("communicator", "true", ""),
    ("gap", "true", ""),
    ("counted", "true", ""),
    ("event", "event = 'communicator.calls'", ""),
    ("event", "(process, seq) IN (SELECT process, max(seq) FROM event GROUP BY process)", ""),
    ("event", "event IN ('placement.first_use', 'placement.mismatch')", "placement.mismatch"),
    ("registration", "kind = 'window'", "placement.mismatch"),
    ("event", "event = 'ipc.export'", "ipc.open"),
    ("mapping", "true", "ipc.open"),
    ("segment", "(process, segment) IN (SELECT process, segment FROM event WHERE event = 'ipc.export')", "ipc.open"),
    (
        "pool_segment",
        "(process, pool_segment) IN (SELECT process, pool_segment FROM event WHERE event = 'ipc.export')",
        "ipc.open",
    ),
)
# What rules about a communicator ask about. `{here}`: it is one of the communicators of a part.
_FOR_COMMUNICATORS: Final = {
    "event": "{here} AND event NOT IN ('register.local', 'deregister.local', 'communicator.calls')",
    "communicator": "{here}",
    "registration": "{here} AND kind = 'window'",
    "pool_segment": "process IN (SELECT process FROM event WHERE event = 'agreement.mismatch' AND {here})",
}


@dataclass(frozen=True)
class ToRead:
    """The logs that a task reads: processes `first`, `first` + 1, ... of the job."""

    path: Path
    is_exported: bool
    logs: Sequence[LogFile]
    clocks: Sequence[int]  # to be added to the times of each log, see selection.shifts
    first: int
    is_shortened: bool  # a log of the job threw its oldest lines away


@dataclass(frozen=True)
class Read:
    """What a task says of the logs that it read."""

    tables: dict[str, Rows]
    events: frozenset[str]  # their names
    version: str


@dataclass(frozen=True)
class Joined:
    """What is known of the job when all logs are read."""

    tables: dict[str, Rows]
    events: frozenset[str]
    parts: int  # of the communicators


@dataclass(frozen=True)
class Judged:
    """What a task found of its processes, and what it says of them for the job."""

    found: list[Finding]
    tables: dict[str, Rows]


class Piece(Store):
    """The database of one task."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tracehook-audit-")))
        try:
            with limits():
                self._open()
                self._database.execute("SET threads = 1")  # there are as many tasks as processors
        except BaseException:
            self._stack.close()
            raise

    def execute(self, sql: str) -> None:
        """Run some SQL."""
        with limits():
            self._database.execute(sql)

    def pack(self, sql: str) -> Rows:
        """Return the rows that `sql` selects."""
        with limits():
            return rows.pack(self._database, self._scratch, sql)

    def unpack(self, table: str, *packed: Rows) -> None:
        """Make a table of rows that were packed."""
        with limits():
            rows.unpack(self._database, self._scratch, table, packed)

    def unpack_events(self, events: Collection[str], *packed: Rows) -> None:
        """Make table `event` of rows that were packed; `events`: the names of all in the logs of the job."""
        with limits():
            rows.unpack_events(self._database, self._scratch, events, packed)

    def columns_of(self, events: Collection[str]) -> str:
        """Return the columns of table `event` that something stands in, as SQL: what these events have."""
        made_up = set(FIELDS) - set(lines_table.fields_of(events))
        return lines_table.column_list(
            row["column_name"] for row in self.rows("DESCRIBE event") if row["column_name"] not in made_up
        )

    def read(self, wanted: ToRead) -> None:
        """Make the tables `process`, `gone` and `event` of logs."""
        logs = [log if wanted.is_exported else _here(log, self._scratch) for log in wanted.logs]
        self.directory, self._is_exported = Directory(wanted.path, logs), wanted.is_exported
        with limits():
            self._read(logs, wanted.clocks, quiet)
        self.run_sections("rings")


def read(wanted: ToRead) -> tuple[Read, Rows]:
    """Read logs; return what the others have to know of them, and their events."""
    with Piece() as piece:
        piece.read(wanted)
        numbered = f"* REPLACE (CAST(process + {wanted.first} AS INTEGER) AS process)"
        events = piece.events()
        columns = piece.columns_of(events)
        rows_of_events = f"SELECT {numbered} FROM (SELECT {columns} FROM event) WHERE event"
        tables = {
            "process": piece.pack(f"SELECT {numbered} FROM process"),
            "gone": piece.pack(f"SELECT {numbered} FROM gone"),
            # May be about a process of another task.
            "violation": piece.pack(f"{rows_of_events} = 'rehearsal.violation'"),
        }
        if wanted.is_shortened:
            tables["condensed"] = piece.pack(
                f"SELECT {wanted.first} AS process, comm, comm_rank, event, max(ranks) AS ranks, max(ns) AS ns "
                "FROM event WHERE comm IS NOT NULL GROUP BY comm, comm_rank, event"
            )
        piece.run_sections("groups")
        # As events of the task's first process: what earlier tasks name counts before.
        tables["named"] = piece.pack(
            f"SELECT 'communicator.group' AS event, {wanted.first} AS process, comm, "
            'name AS "desc", CAST(NULL AS VARCHAR) AS "group", members FROM communicator_group'
        )
        others = piece.pack(f"{rows_of_events} != 'rehearsal.violation'")
        return Read(tables, frozenset(events), tracehook.__version__), others


def judge_processes(joined: Joined, own: Sequence[range], *events: Rows) -> tuple[Judged | dict[str, Rows], ...]:
    """Apply the rules about one process to processes; return what was found, and the rows for each part."""
    is_own = " OR ".join(f"process BETWEEN {numbers[0]} AND {numbers[-1]}" for numbers in own)
    with Piece() as piece:
        for table in ("process", "gone", "forgotten", "communicator_group"):
            piece.unpack(table, joined.tables[table])
        piece.unpack_events(joined.events, *events, joined.tables["violation"])
        piece.run_sections("violations")
        piece.execute(f"DELETE FROM event WHERE event = 'rehearsal.violation' AND NOT ({is_own})")
        for table in ("process", "gone"):
            piece.execute(f"DELETE FROM {table} WHERE NOT ({is_own})")
        piece.run_sections("gaps")
        piece.execute("DELETE FROM event WHERE comm IN (FROM forgotten)")
        piece.run_sections("communicators", "memory")
        piece.use_macros()
        judged = Judged(apply_rules(piece, ["process"]), _for_the_job(piece, joined.events))
        return judged, *(_of_part(piece, part, joined) for part in range(joined.parts))


def judge_communicators(joined: Joined, *bundles: dict[str, Rows]) -> list[Finding]:
    """Apply the rules about one communicator to a part of them; return what was found."""
    with Piece() as piece:
        for table in ("process", "gone", "communicator_group"):
            piece.unpack(table, joined.tables[table])
        for table in _FOR_COMMUNICATORS:
            packed = [bundle[table] for bundle in bundles]
            if table == "event":
                piece.unpack_events(joined.events, *packed)
            else:
                piece.unpack(table, *packed)
        piece.make_operations()
        piece.use_macros()
        return apply_rules(piece, ["communicator"])


def _for_the_job(piece: Piece, events: frozenset[str]) -> dict[str, Rows]:
    conditions: dict[str, list[str]] = {}
    for table, condition, needs in FOR_THE_JOB:
        conditions.setdefault(table, []).append(condition if not needs or needs in events else "false")
    return {
        table: piece.pack(f"{_selected(piece, table, events)} WHERE {' OR '.join(f'({each})' for each in its)}")
        for table, its in conditions.items()
    }


def _of_part(piece: Piece, part: int, joined: Joined) -> dict[str, Rows]:
    here = f"comm IS NOT NULL AND md5_number_lower(comm) % {joined.parts} = {part}"
    return {
        table: piece.pack(f"{_selected(piece, table, joined.events)} WHERE {condition.format(here=here)}")
        for table, condition in _FOR_COMMUNICATORS.items()
    }


def _selected(piece: Piece, table: str, events: frozenset[str]) -> str:
    return f"SELECT {piece.columns_of(events)} FROM event" if table == "event" else f"FROM {table}"


def _here(log: LogFile, scratch: Path) -> LogFile:
    """Return a log with the texts that this machine has: what another one unpacked is unpacked here again."""
    parts: list[LogPart] = []
    for part in log.parts:
        if not part.path.exists():
            raise LogError(
                f"{part.path}: not there on {socket.gethostname()}, where a part of the audit runs; expected a "
                "directory that all workers see under one path, as on a shared file system"
            )
        if part.text != part.path:
            text = scratch / f"{next(_numbers)}-{part.path.name}.unpacked"
            packing.unpack(part.path, text)  # what is wrong with it, the log says already
            part = replace(part, text=text)
        parts.append(part)
    return replace(log, parts=parts)
