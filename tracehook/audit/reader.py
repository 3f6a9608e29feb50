"""Read the logs of a job: each process's JSON lines, and what a killed process left in its ring."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracehook.audit import ring

SCHEMA_MAJOR = 1


class LogError(ValueError):
    """A directory or file that cannot be read as a tracehook log; the text says which and why."""


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

    A torn last line (the process was killed while writing it) is left out: its event is still in the ring, because
    the ring lets go of an event only after its line was written. Raises :class:`LogError` if it is no tracehook log.
    """
    lines = path.read_bytes().split(b"\n")
    torn = bool(lines.pop())
    events: list[dict[str, Any]] = []
    foreign = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError:
            foreign.append(number)
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
        else:
            foreign.append(number)
    if not events or events[0]["event"] != "trace.begin":
        raise LogError(f"{path}: not a tracehook log (its first line is no trace.begin)")
    begin = events[0]
    major = str(begin.get("schema", "")).partition(".")[0]
    if not major.isdigit() or int(major) > SCHEMA_MAJOR:
        raise LogError(f"{path}: schema {begin.get('schema')!r}; this tracehook reads up to {SCHEMA_MAJOR}.x")
    log = ProcessLog(path, begin, events, torn=torn, foreign_lines=foreign)
    log.ended = events[-1]["event"] == "trace.end"
    log.dropped = int(events[-1].get("dropped", 0)) if log.ended else 0
    _recover(log, path.with_suffix(".ring"))
    return log


def _recover(log: ProcessLog, ring_path: Path) -> None:
    if not ring_path.exists():
        return
    left = ring.read_file(ring_path)
    seen = {event.get("seq") for event in log.events}
    for record in left.records:
        name, fields = ring.fields_of(record)
        if fields["seq"] not in seen:
            log.events.append({"event": name, **fields})
            log.recovered += 1
    log.dropped = max(log.dropped, left.dropped)


def read_directory(directory: Path) -> list[ProcessLog]:
    """Read every log of `directory`, by rank and then by process. Raises :class:`LogError` if there is none."""
    if not directory.is_dir():
        raise LogError(f"{directory}: not a directory; expected the one that SYMM_REGISTER_LOG named")
    logs = [read_process(path) for path in sorted(directory.glob("*.jsonl"))]
    if not logs:
        raise LogError(f"{directory}: no .jsonl log in it; was SYMM_REGISTER_HOOK=1 set, and torch imported?")
    return sorted(logs, key=lambda log: (log.rank if log.rank is not None else 1 << 30, log.begin.get("pid", 0)))
