"""Read the logs of a job: each process's JSON lines, and what a killed process left in its ring."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracehook.log import ring

SCHEMA_MAJOR = 1


class LogError(ValueError):
    """A directory or file that cannot be read as a tracehook log; the text says which and why."""


class NewerSchema(LogError):
    """A log of a schema that this reader cannot know."""


@dataclass
class ProcessLog:
    """Everything one process said.

    `events` are in the order in which they happened, as in the file; those in `recovered` came from the ring of a
    process that ended without writing them. `begin` is the first line. `ended` tells whether the process closed its
    log.
    """

    path: Path
    begin: dict[str, Any]
    events: list[dict[str, Any]]
    recovered: int = 0
    ended: bool = False
    torn: bool = False
    dropped: int = 0
    foreign_lines: list[int] = field(default_factory=list)

    @property
    def rank(self) -> int | None:
        """The global rank, if the launcher said one."""
        return self.begin.get("rank")


def read_process(path: Path) -> ProcessLog:
    """Read one ``.jsonl`` log and the ``.ring`` beside it, if there is one.

    A torn last line (the process was killed while writing it) is left out: its event is still in the ring, because the
    ring lets go of an event only after its line was written. Raises :class:`LogError` if it is no tracehook log.
    """
    if not path.is_file():
        raise LogError(f"{path}: not a regular file")
    try:
        # The ring first: what leaves it meanwhile, in a process that still runs, is in the log by then.
        left = _read_ring(path.with_suffix(".ring"))
        lines = path.read_bytes().split(b"\n")
    except OSError as problem:
        raise LogError(f"{path}: {problem.strerror}") from None
    torn = bool(lines.pop())
    events: list[dict[str, Any]] = []
    foreign = []
    for number, line in enumerate(lines, start=1):
        event = parse_line(line)
        if event is None:
            foreign.append(number)
        else:
            events.append(event)
    if not events or events[0]["event"] != "trace.begin":
        raise LogError(f"{path}: not a tracehook log (its first line is no trace.begin)")
    begin = events[0]
    check_schema(path, begin)
    log = ProcessLog(path, begin, events, torn=torn, foreign_lines=foreign)
    log.ended = events[-1]["event"] == "trace.end"
    log.dropped = _count(events[-1].get("dropped")) if log.ended else 0
    if left is not None:
        _recover(log, left)
    return log


def check_schema(path: Path, begin: dict[str, Any]) -> None:
    """Raise :class:`LogError` if the log that begins with `begin` has a schema that this reader cannot know."""
    major = str(begin.get("schema", "")).partition(".")[0]
    is_number = major.isascii() and major.isdigit() and len(major) < 10
    if not is_number or int(major) > SCHEMA_MAJOR:
        kind = NewerSchema if is_number else LogError
        raise kind(f"{path}: schema {begin.get('schema')!r}; this tracehook reads up to {SCHEMA_MAJOR}.x")


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the event of one line; None if it is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _read_ring(path: Path) -> ring.RingFile | None:
    try:
        return ring.read_file(path)
    except FileNotFoundError:
        return None


def _recover(log: ProcessLog, left: ring.RingFile) -> None:
    seen = {event.get("seq") for event in log.events}
    for record in left.records:
        name, fields = ring.fields_of(record)
        if fields["seq"] not in seen:
            log.events.append({"event": name, **fields})
            log.recovered += 1
    log.dropped = max(log.dropped, left.dropped)


def read_directory(directory: Path, since: float = 0.0, unreadable: list[str] | None = None) -> list[ProcessLog]:
    """Read every log of `directory` that was written at or after `since`, by rank and then by process.

    A file that cannot be read does not hide the others if `unreadable` is given: it gets one line there. Else it raises
    :class:`LogError`, as a missing directory does, and one without any log.
    """
    if not directory.is_dir():
        raise LogError(f"{directory}: not a directory; expected the one that SYMM_REGISTER_LOG named")
    logs = []
    for path in sorted(directory.glob("*.jsonl")):
        try:
            if path.stat().st_mtime >= since:
                logs.append(read_process(path))
        except (LogError, ring.RingError, OSError) as problem:
            if unreadable is None:
                raise
            unreadable.append(f"{path}: {problem.strerror}" if isinstance(problem, OSError) else str(problem))
    if not logs and unreadable:
        raise LogError("; ".join(unreadable))
    if not logs:
        packed = " (packed ones are not read by this command)" if any(directory.glob("*.jsonl.gz")) else ""
        raise LogError(f"{directory}: no .jsonl log in it{packed}; was SYMM_REGISTER_HOOK=1 set, and torch imported?")
    return sorted(logs, key=_order)


def _order(log: ProcessLog) -> tuple[int, int]:
    return (log.rank if isinstance(log.rank, int) else 1 << 30, _count(log.begin.get("pid")))
