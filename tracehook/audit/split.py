"""The logs of a job into table ``event`` by tasks, as workers on other machines do them: each reads a block of logs.

Each task has a database. It reads its logs into the table ``event`` there, and writes that table to a Parquet file.
This process puts the tables together. Then it runs the ordinary audit.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import duckdb

import tracehook
from tracehook.audit import lines_table
from tracehook.audit.limits import limits, open_database
from tracehook.audit.texts import Place, Texts, fill, size_of
from tracehook.log import packing
from tracehook.log.file import LogFile, LogPart
from tracehook.log.lines import LogError
from tracehook.log.text import many, ranks_in_words

_LARGEST: Final = 256 << 20  # bytes of logs that one task reads, or one log
_SMALLEST: Final = 4 << 20  # below that one more task costs more than it saves


class NotWhole(LogError):
    """A block was not read, so nothing is concluded."""


@dataclass(frozen=True)
class Block:
    """The logs that a task reads: processes `first`, `first` + 1, ... of the job."""

    first: int
    logs: Sequence[LogFile]
    shifts: Sequence[int]  # to be added to the times of each log, see selection.shifts

    @property
    def about(self) -> str:
        """What is missing if it is never read."""
        ranks = {log.rank for log in self.logs if log.rank is not None}
        return f"{many(len(self.logs), 'log')} ({ranks_in_words(ranks) if ranks else self.logs[0].path.name})"


@dataclass(frozen=True)
class Read:
    """What a task says of its block. `rows`: those of table ``event``, a Parquet file."""

    rows: bytes
    events: set[str]
    places: dict[int, Place]
    complaints: dict[int, str]
    version: str


class Workers(Protocol):
    """Those that do the tasks."""

    @property
    def count(self) -> int:
        """How many tasks can run at a time."""

    def read(self, blocks: Sequence[Block]) -> Iterator[Read]:
        """Yield what :func:`read` says of each block, in turn. Raises what it raises, and :class:`NotWhole`."""


class SharedTexts:
    """The logs of a directory, as :class:`~tracehook.audit.texts.Texts` has them, read by workers."""

    def __init__(self, logs: Sequence[LogFile], shifts: Sequence[int], scratch: Path, workers: Workers) -> None:
        self._logs, self._scratch, self._workers = logs, scratch, workers
        self._blocks = list(blocks(logs, shifts, workers.count))
        self._files: list[Path] = []

    def survey(self, _database: duckdb.DuckDBPyConnection) -> tuple[set[str], dict[int, Place]]:
        """Return which events there are, and the places of the processes that knew them only from a first group."""
        events: set[str] = set()
        places: dict[int, Place] = {}
        for number, read in enumerate(self._workers.read(self._blocks)):
            if read.version != tracehook.__version__:
                raise LogError(
                    f"a worker has tracehook {read.version}, and this process {tracehook.__version__}; install one "
                    "version on all machines"
                )
            self._files.append(self._scratch / f"block-{number}.parquet")
            self._files[-1].write_bytes(read.rows)
            events |= read.events
            places |= read.places
            for process, complaint in read.complaints.items():
                self._logs[process].complaint = complaint
        return events, places

    def load(self, database: duckdb.DuckDBPyConnection, *_given: object) -> None:
        """Add what the workers read to table ``event``."""
        for file in self._files:
            database.execute(f"INSERT INTO event BY NAME FROM read_parquet('{lines_table.quoted(file)}')")
            file.unlink()


def blocks(logs: Sequence[LogFile], shifts: Sequence[int], workers: int) -> Iterator[Block]:
    """Yield blocks of logs that are neighbours, with about as many bytes as others."""
    sizes = [max(1, sum(size_of(part.text) for part in log.parts)) for log in logs]
    most = max(-(-sum(sizes) // _LARGEST), min(workers, sum(sizes) // _SMALLEST), 1)
    home, passed = [], 0
    for size in sizes:
        home.append((passed + size // 2) * most // sum(sizes))
        passed += size
    for number in dict.fromkeys(home):
        first = home.index(number)
        its = slice(first, first + home.count(number))
        yield Block(first, [_absolute(log) for log in logs[its]], shifts[its])


def read(block: Block) -> Read:
    """Read a block of logs, on the machine of a worker."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracehook-audit-")))
        logs = [_here(log, scratch, number) for number, log in enumerate(block.logs)]
        stack.enter_context(limits())
        database = stack.enter_context(open_database(scratch / "block.duckdb"))
        database.execute("SET threads = 1; SET preserve_insertion_order = false")  # as many tasks as processors
        events, fields, places = fill(database, Texts(logs, scratch), logs, block.shifts)
        stored = lines_table.column_list(name for name in fields if name not in lines_table.OF_PROCESS)
        file = scratch / "block.parquet"
        database.execute(
            f"COPY (SELECT process + {block.first} AS process, rank, recovered, ns, is_no_event, said_rank, {stored} "
            f"FROM event) TO '{lines_table.quoted(file)}' (FORMAT parquet, COMPRESSION zstd)"
        )
        complaints = {block.first + number: log.complaint for number, log in enumerate(logs)}
        numbered = {block.first + number: place for number, place in places.items()}
        return Read(file.read_bytes(), events, numbered, complaints, tracehook.__version__)


def _absolute(log: LogFile) -> LogFile:
    """Return a log whose paths hold in every process."""
    parts = [replace(part, path=part.path.absolute(), text=part.text.absolute()) for part in log.parts]
    return replace(log, path=log.path.absolute(), parts=parts)


def _here(log: LogFile, scratch: Path, number: int) -> LogFile:
    """Return a log with the texts that this machine has: what another one unpacked is unpacked here again."""
    parts: list[LogPart] = []
    for part in log.parts:
        if not part.path.exists():
            raise LogError(
                f"{part.path}: not there on {socket.gethostname()}, where a part of the audit runs; expected a "
                "directory that all workers see under one path, as on a shared file system"
            )
        if part.text != part.path:
            text = scratch / f"{number}-{len(parts)}.unpacked"
            packing.unpack(part.path, text)  # what is wrong with it, the log says already
            part = replace(part, text=text)
        parts.append(part)
    return replace(log, parts=parts)
