"""The lines of a log: which of them are events, and what the first one must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tracehook.log.text import number_in

LONGEST_LINE: Final = 1 << 20  # bytes; ours have a few hundred
SCHEMA_MAJOR: Final = 1

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_BLANKS = " \t\r\n"

Event = dict[str, Any]


class LogError(ValueError):
    """A directory or file that cannot be read as a tracehook log; the text says which and why."""


class NewerSchema(LogError):
    """A log of a schema that this reader cannot know."""


class NotALog(LogError):
    """A file of another kind."""


def parse_line(line: bytes) -> Event | None:
    """Return the event of one line; None if it is none."""
    try:
        try:  # twice as fast as json.loads, of bytes that are as we write them
            text = line.decode("utf-8", "surrogatepass")
            event, end = _scan(text, 0)
            if text[end:].strip(_BLANKS):
                return None
        except StopIteration:
            event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def parse_begin(file: object, line: bytes | None) -> Event:
    """Return the event of the first line of `file`; None stands for a line that is not whole, or too long.

    Raises :class:`NotALog` if that is no ``trace.begin``, and :class:`LogError` if its schema cannot be read.
    """
    begin = None if line is None else parse_line(line)
    if begin is None or begin["event"] != "trace.begin":
        raise NotALog(f"{file}: not a tracehook log (its first line is no trace.begin)")
    major = number_in(str(begin.get("schema", "")).partition(".")[0])
    if major is None or major > SCHEMA_MAJOR:
        kind = LogError if major is None else NewerSchema
        raise kind(f"{file}: schema {begin.get('schema')!r}; this tracehook reads up to {SCHEMA_MAJOR}.x")
    return begin


def whole_lines(path: Path) -> Iterator[bytes | None]:
    """Yield each whole line of a file; None stands for one that is longer than any event can be."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            if line:
                yield None


def parse_lines(lines: Iterable[bytes | None]) -> Iterator[tuple[int, Event | None]]:
    """Yield the number of each line that is not empty, and its event; None if it is no event."""
    for number, line in enumerate(lines, start=1):
        event = None if line is None else parse_line(line)
        if event is not None or line is None or line.strip():
            yield number, event


def whole_number(value: object, limit: int = 1 << 63) -> int | None:
    """Return a number of an event that is at least 0 and less than `limit`; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def is_repeated(event: Event, begin: Event) -> bool:
    """Whether an event of a part of a log also stands in the part before: it is of the checkpoint.

    `begin` is the first line of the part.
    """
    seq, from_seq = event.get("seq"), begin.get("from_seq")
    if isinstance(seq, int) and isinstance(from_seq, int):
        return seq < from_seq
    t_ns, after_t_ns = event.get("t_ns"), begin.get("after_t_ns")
    return isinstance(t_ns, int) and isinstance(after_t_ns, int) and t_ns <= after_t_ns
