"""Read the logs of a job: each process's JSON lines, and what a killed process left in its ring."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tracehook.log.directory import Directory, find_logs
from tracehook.log.file import LogFile, open_log, rank_of
from tracehook.log.lines import Event, LogError, whole_number


@dataclass
class ProcessLog:
    """Everything one process said.

    `events` are in the order in which they happened, as in the file; those in `recovered` came from the ring of a
    process that ended without writing them. `begin` is the first line. `ended` tells whether the process closed its
    log. `complaint` says why not all of it could be read.
    """

    path: Path
    begin: Event
    events: list[Event]
    recovered: int = 0
    ended: bool = False
    torn: bool = False
    dropped: int = 0
    foreign_lines: list[int] = field(default_factory=list)
    complaint: str = ""
    rank_of_group: int | None = None  # from its first group, if the launcher said none
    signal: int = 0  # that ended it; 0: none is known
    has_ring: bool = False
    epoch_ns: int = 0  # wall clock minus monotonic clock, as the ring has it

    @property
    def rank(self) -> int | None:
        """The global rank, if the launcher or the first group said one."""
        of_launcher = rank_of(self.begin)
        return self.rank_of_group if of_launcher is None else of_launcher


def read_process(path: Path) -> ProcessLog:
    """Read one log (``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``) and the ``.ring`` beside it, if there is one.

    Of a log with several parts only this one is read.

    A torn last line (the process was killed while writing it) is left out: its event is still in the ring, because the
    ring lets go of an event only after its line was written. Raises :class:`LogError` if it is no tracehook log.
    """
    with tempfile.TemporaryDirectory(prefix="tracehook-log-") as scratch:
        try:
            return _read_file(open_log([path], Path(scratch)))
        except OSError as problem:
            raise LogError(f"{path}: {problem.strerror}") from None


def read_directory(
    directory: Path,
    since: float = 0.0,
    unreadable: list[str] | None = None,
    select: Callable[[Directory], list[LogFile]] = lambda found: found.logs,
) -> list[ProcessLog]:
    """Read every log of `directory` that was written at or after `since`, by rank and then by process.

    Of these `select` returns those that are read.

    If `unreadable` is given, it gets one line for each file that has the name of a log and is left out. Otherwise a log
    that cannot be read, or not all of it, raises :class:`LogError`. A missing directory and one without any log always
    do.
    """
    misnamed: list[str] = []
    broken: list[str] = []
    logs = list(read_each(directory, since, select, misnamed, broken))
    logs.sort(key=lambda log: (log.rank is None, log.rank or 0))  # a rank may stand within the log
    if unreadable is not None:
        unreadable += misnamed + broken
    elif problems := broken + [log.complaint for log in logs if log.complaint]:
        raise LogError("; ".join(problems))
    return logs


def read_each(
    directory: Path,
    since: float,
    select: Callable[[Directory], list[LogFile]],
    misnamed: list[str],
    unreadable: list[str],
) -> Iterator[ProcessLog]:
    """Read the same logs one after the other: of very many processes not all events fit into memory at once.

    At the end `misnamed` gets a line for each file that only has the name of a log, `unreadable` for each other one.
    """
    with tempfile.TemporaryDirectory(prefix="tracehook-log-") as scratch:
        found = find_logs(directory, Path(scratch), since)
        for file in select(found):
            try:
                log = _read_file(file)
            except OSError as problem:
                found.unreadable.append(f"{file.path}: {problem.strerror}")
            else:
                yield log
    misnamed += found.misnamed
    unreadable += found.unreadable


def _read_file(file: LogFile) -> ProcessLog:
    log = ProcessLog(file.path, file.begin, [], ended=file.ended, torn=file.torn, complaint=file.complaint)
    for place, part in enumerate(file.parts):
        for number, event in part.events(is_first=place == 0):
            if event is None:
                log.foreign_lines.append(number)
            else:
                log.events.append(event)
                if event["event"] == "rank.known":
                    log.rank_of_group = rank_of(event)
    if log.ended and log.events:
        log.dropped = whole_number(log.events[-1].get("dropped")) or 0
    if file.left is not None:
        ring = file.left.header
        log.signal, log.has_ring, log.epoch_ns = ring.signal, True, ring.epoch_ns
        log.dropped = max(log.dropped, ring.dropped)
    seen = {whole_number(event.get("seq")) for event in log.events}
    # What a line sums was in the ring until the line was written.
    summed = max(
        (whole_number(event.get("until_seq")) or 0 for event in log.events if event["event"] == "log.summed"), default=0
    )
    left = [event for event in file.events_left() if event.get("seq", summed + 1) > summed]
    left = [event for event in left if "seq" not in event or event["seq"] not in seen]
    log.events += left
    log.recovered = sum("seq" in event for event in left)
    return log
