"""One log: how it begins and ends, and what the ring beside it still has."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from tracehook.log import calls, ring, ring_place
from tracehook.log.file_name import told_by
from tracehook.log.lines import (
    LONGEST_LINE,
    Event,
    LogError,
    NotALog,
    parse_begin,
    parse_line,
    parse_lines,
    whole_number,
)
from tracehook.log.participation import Participation
from tracehook.log.text import encodable

_TAIL = 1 << 16
_HEAD = 1 << 18
_CHUNK = 1 << 22
_LAST_YEAR = 2100  # nanoseconds since 1970 in 63 bits, and as much again for a difference
_NO_EVENTS = ring.RingFile(0, 0, 0, 0, [])


@dataclass
class LogFile:
    """The log of one process. `text` is what to read: the file itself, or a copy that was unpacked."""

    path: Path
    text: Path | None
    begin: Event
    ended: bool = False
    torn: bool = False
    cut_event: bool = False  # what is torn is no event
    left: ring.RingFile | None = None  # what had not reached the file
    complaint: str = ""  # why not all of it could be read
    headless: bool = False  # its first line is not there: `begin` is what its name and its siblings tell

    @property
    def rank(self) -> int | None:
        """The global rank, if the launcher said one."""
        return rank_of(self.begin)

    @property
    def job(self) -> str | None:
        """The id of the job."""
        return job_of(self.begin)

    @property
    def began(self) -> datetime | None:
        """When the process began, in UTC, without saying so: what DuckDB calls a TIMESTAMP."""
        return began_of(self.begin)

    @cached_property
    def participation(self) -> Participation:
        """What the process took part in, of which the beginning of the log tells, and the ring."""
        found = Participation()
        for _, event in parse_lines(self._first_lines()):
            if event is not None:
                found.add(event)
        for event in self.events_left():
            found.add(event)
        return found

    def _first_lines(self) -> list[bytes]:
        if self.text is None:
            return []
        with self.text.open("rb") as file:
            return file.read(_HEAD).split(b"\n")[:-1]

    def events_left(self) -> Iterator[Event]:
        """Yield the events of the ring, as the file would have them. Some of them may be in the file."""
        if self.left is None:
            return
        for record in self.left.records:
            name, fields = ring.fields_of(record)
            yield {"event": name, **fields}
        for found in calls.unlogged(self.left.slots):
            yield {"event": "communicator.calls", "t_ns": found.moved_ns, **calls.fields_of(found)}


def rank_of(begin: Event) -> int | None:
    """Return the global rank in a first line, or in an event ``rank.known``."""
    return whole_number(begin.get("rank"), 1 << 31)


def job_of(begin: Event) -> str | None:
    """Return the id of the job that this first line names."""
    name = begin.get("job")
    return encodable(name) if isinstance(name, str) else None


def launcher_job_of(begin: Event) -> str | None:
    """Return the id that the job has in its launcher's own log, if it is another one."""
    name = begin.get("launcher_job")
    return encodable(name) if isinstance(name, str) else None


def began_of(begin: Event) -> datetime | None:
    """Return when the process of this first line began, in UTC, without saying so."""
    try:
        time = datetime.fromisoformat(str(begin.get("time"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time.replace(tzinfo=None) if 1970 <= time.year < _LAST_YEAR else None


def open_log(path: Path, unpacked: Path) -> LogFile:
    """Look at one log and at the ring beside it. If it is packed, its text goes to `unpacked`.

    Raises :class:`LogError` or OSError if it is none that can be read.
    """
    if not path.is_file():
        raise LogError(f"{path}: not a regular file")
    # The ring first: what leaves it meanwhile, in a process that still runs, is in the log by then.
    left, complaint = _read_ring(ring_place.beside_or_named(path, _first_event(path)))
    if path.stat().st_size == 0:
        return _without_lines(path, left, complaint)
    text = path
    if path.suffix == ".gz":
        text = unpacked
        broken = _unpack(path, text)
        complaint = complaint or broken
    with text.open("rb") as file:
        first = file.readline(LONGEST_LINE)
        if left is not None and not first.endswith(b"\n") and len(first) < LONGEST_LINE:
            return _without_lines(path, left, complaint)
        try:
            begin = parse_begin(path, first if first.endswith(b"\n") else None)
        except NotALog as problem:
            if "pid" not in _begin_of(path):
                raise
            raise LogError(str(problem)) from None  # what has the name of a log is one, and damaged
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
    whole, newline, rest = tail.rpartition(b"\n")
    last = parse_line(whole.rstrip().rpartition(b"\n")[2]) if newline else None
    ended = last is not None and last["event"] == "trace.end"
    log = LogFile(path, text, begin, ended, torn=bool(rest) or not newline, left=left, complaint=complaint)
    log.cut_event = log.torn and parse_line(rest) is None
    return log


def open_ring(path: Path) -> LogFile:
    """Look at the ring of a process that was killed before it made its log, or whose log is gone.

    Raises :class:`tracehook.log.ring.RingError` or OSError if it is none that can be read.
    """
    try:
        left = ring.read_file(path)
    except ring.UnbornRing:
        left = _NO_EVENTS
    complaint = f"{path.name}: its .jsonl is missing, read from the ring" if left.drained else ""
    return LogFile(path, None, _begin_of(path), left=left, complaint=complaint, headless=True)


def _without_lines(path: Path, left: ring.RingFile | None, complaint: str) -> LogFile:
    """A process that was killed before the first line of its log was whole; what it did may be in the ring."""
    begin = _begin_of(path)
    if left is None and "pid" not in begin:
        raise NotALog(f"{path}: not a tracehook log (it is empty)")
    return LogFile(path, None, begin, left=left, complaint=complaint, headless=True)


def _begin_of(path: Path) -> Event:
    told = told_by(path.name)
    if told is None:
        return {"event": "trace.begin"}
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return {"event": "trace.begin", **told._asdict(), "time": changed.isoformat()}


def _first_event(path: Path) -> Event:
    """Return the first line of a log, which never changes; an empty event if there is none that can be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return parse_line(file.readline(LONGEST_LINE)) or {}
    except (OSError, EOFError, zlib.error):
        return {}


def _read_ring(path: Path) -> tuple[ring.RingFile | None, str]:
    """Return what a ring holds, None if there is none that can be read, and then why; or no words if there is none."""
    try:
        return ring.read_file(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as problem:
        return None, f"{path.name}: {problem.strerror}"
    except ring.UnbornRing:
        return _NO_EVENTS, ""
    except ring.RingError as problem:
        return None, str(problem)


def _unpack(packed: Path, target: Path) -> str:
    """Unpack as much as is there; return what was wrong, or nothing."""
    with target.open("wb") as out:
        try:
            with gzip.open(packed) as source:
                while chunk := source.read1(_CHUNK):  # read() would lose what lies before the damage
                    out.write(chunk)
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            return f"{packed.name}: damaged gzip ({problem}); read up to there"
    return ""
