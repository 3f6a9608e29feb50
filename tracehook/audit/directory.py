"""A directory of logs: which files are one, how each begins and ends, and why the others are left out.

Looks at the first line and the last few of each file; what lies between is read by :mod:`tracehook.audit.store`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracehook.log import ring
from tracehook.log.reader import LogError, NewerSchema, check_schema, parse_line

LONGEST_LINE = 1 << 20  # bytes; ours have a few hundred
_TAIL = 1 << 16
_CHUNK = 1 << 22
_LAST_YEAR = 2100  # nanoseconds since 1970 in 63 bits, and as much again for a difference
_SUFFIXES = (".jsonl", ".jsonl.gz")
_NOTHING = ring.RingFile(0, 0, 0, 0, [])
_NO_BEGIN = "not a tracehook log (its first line is no trace.begin)"


@dataclass
class LogFile:
    """The log of one process. `text` is what to read: the file itself, or a copy that was unpacked or cleaned."""

    path: Path
    text: Path | None
    begin: dict[str, Any]
    ended: bool = False
    torn: bool = False
    cut_event: bool = False  # what is torn is no event
    left: ring.RingFile | None = None  # what had not reached the file
    foreign: list[int] = field(default_factory=list)  # lines that are no events, by number
    complaint: str = ""  # why not all of it could be read
    headless: bool = False  # its first line is not there: `begin` is what its name and its siblings tell

    @property
    def rank(self) -> int | None:
        """The global rank, if the launcher said one."""
        return _whole(self.begin.get("rank"))

    @property
    def job(self) -> str | None:
        """The launcher's name of the job."""
        name = self.begin.get("job")
        return writable(name) if isinstance(name, str) else None

    @property
    def began(self) -> datetime | None:
        """When the process began, in UTC, without saying so: what DuckDB calls a TIMESTAMP."""
        try:
            time = datetime.fromisoformat(str(self.begin.get("time"))).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        return time.replace(tzinfo=None) if 1970 <= time.year < _LAST_YEAR else None


@dataclass
class Directory:
    """The logs found, in the order of ranks, and one line for each file that could not be used."""

    path: Path
    logs: list[LogFile]
    foreign: list[str]  # no logs at all
    unreadable: list[str]  # logs, or so it seems, that cannot be read


def look(path: Path, scratch: Path) -> Directory:
    """Find the logs of `path`. Copies that have to be made go to `scratch`.

    Raises :class:`LogError` if there is none, if it is no directory, or if a log was written in a newer major schema.
    """
    if not path.is_dir():
        raise LogError(f"{path}: not a directory; expected the one that SYMM_REGISTER_LOG named")
    logs: list[LogFile] = []
    foreign: list[str] = []
    unreadable: list[str] = []
    files = sorted(path.iterdir())
    stems = {_stem(file) for file in files if file.name.endswith(_SUFFIXES)}
    names = {file.name for file in files}
    for number, file in enumerate(files):
        try:
            if file.name.endswith(".gz") and file.name.removesuffix(".gz") in names:
                foreign.append(f"{file}: stands beside it, unpacked")
            elif file.name.endswith(_SUFFIXES):
                logs.append(_open(file, scratch / f"unpacked-{number}.jsonl"))
            elif file.suffix != ".ring":
                foreign.append(f"{file}: not a log (expected .jsonl, .jsonl.gz, .ring)")
            elif file.stem not in stems:
                logs.append(_ring_alone(file))
        except NewerSchema:
            raise
        except OSError as problem:
            unreadable.append(f"{file}: {problem.strerror or problem}")
        except NotALog as problem:
            foreign.append(str(problem))
        except (LogError, ring.RingError) as problem:
            unreadable.append(str(problem))
    if not logs:
        wrong = unreadable + foreign
        why = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise LogError(why or f"{path}: no .jsonl log in it; was SYMM_REGISTER_HOOK=1 set, and torch imported?")
    _complete(logs)
    foreign += _take_copies_out(logs)
    return Directory(path, sorted(logs, key=_order), foreign, unreadable)


class NotALog(LogError):
    """A file of another kind."""


def _open(path: Path, unpacked: Path) -> LogFile:
    if not path.is_file():
        raise LogError(f"{path}: not a regular file")
    if path.stat().st_size == 0:
        return _without_lines(path)
    # The ring first: what leaves it meanwhile, in a process that still runs, is in the log by then.
    left, complaint = _read_ring(path.parent / f"{_stem(path)}.ring")
    text = path
    if path.suffix == ".gz":
        text = unpacked
        broken = _unpack(path, text)
        complaint = complaint or broken
    with text.open("rb") as file:
        first = file.readline(LONGEST_LINE)
        if left is not None and not first.endswith(b"\n") and len(first) < LONGEST_LINE:
            return _without_lines(path)
        begin = parse_line(first)
        if not first.endswith(b"\n") or begin is None or begin["event"] != "trace.begin":
            # What has the name of a log is one, and damaged.
            raise (LogError if "pid" in _begin_of(path) else NotALog)(f"{path}: {_NO_BEGIN}")
        check_schema(path, begin)
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
    whole, newline, rest = tail.rpartition(b"\n")
    last = parse_line(whole.rstrip().rpartition(b"\n")[2]) if newline else None
    ended = last is not None and last["event"] == "trace.end"
    log = LogFile(path, text, begin, ended, torn=bool(rest) or not newline, left=left, complaint=complaint)
    log.cut_event = log.torn and parse_line(rest) is None
    return log


def _ring_alone(path: Path) -> LogFile:
    """A process that was killed before it made its log, or whose log is gone."""
    try:
        left = ring.read_file(path)
    except ring.UnbornRing:
        left = _NOTHING
    complaint = f"{path.name}: its .jsonl is missing, read from the ring" if left.drained else ""
    return LogFile(path, None, _begin_of(path), left=left, complaint=complaint, headless=True)


def _without_lines(path: Path) -> LogFile:
    """A process that was killed before the first line of its log was whole; what it did may be in the ring."""
    left, complaint = _read_ring(path.parent / f"{_stem(path)}.ring")
    begin = _begin_of(path)
    if left is None and "pid" not in begin:
        raise NotALog(f"{path}: empty")
    return LogFile(path, None, begin, left=left, complaint=complaint, headless=True)


def _begin_of(path: Path) -> dict[str, Any]:
    """What the name of the file tells."""
    found = re.fullmatch(r"([^.]*)\.rank(\d{1,9}|-)\..*\.(\d{1,9})(\.\d+)?", _stem(path))
    if found is None:
        return {"event": "trace.begin"}
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return {
        "event": "trace.begin",
        "job": found[1] if found[1] != "job" else None,
        "rank": int(found[2]) if found[2] != "-" else None,
        "pid": int(found[3]),
        "time": changed.isoformat(),
    }


def _complete(logs: list[LogFile]) -> None:
    """Give each log without a first line what is the same on all ranks of its job, which its name begins with."""
    told: dict[str, list[LogFile]] = {}
    for log in logs:
        if not log.headless:
            told.setdefault(_job_in(log.path), []).append(log)
    for log in logs:
        if log.headless and (alike := told.get(_job_in(log.path))):
            # Of several starts of a job it was in the last one that had begun when its file was made.
            like = max(alike, key=lambda other: (_before(other, log), other.began or datetime.min))
            log.begin |= {name: like.begin.get(name) for name in ("job", "attempt", "world_size")}


def _take_copies_out(logs: list[LogFile]) -> list[str]:
    """Leave one log of each process, the longest; return what to say of the others."""
    first: dict[tuple[object, ...], LogFile] = {}
    said = []
    for log in sorted(logs, key=lambda log: (log.left is None, -log.path.stat().st_size, log.path.name)):
        life = tuple(str(log.begin.get(name)) for name in ("host", "pid", "t_ns"))
        if "t_ns" in log.begin and (other := first.setdefault(life, log)) is not log:
            logs.remove(log)
            said.append(f"{log.path}: another log of the process of {other.path.name}")
    return said


def _before(one: LogFile, other: LogFile) -> bool:
    return one.began is not None and other.began is not None and one.began <= other.began


def _job_in(path: Path) -> str:
    return path.name.partition(".")[0]


def _read_ring(path: Path) -> tuple[ring.RingFile | None, str]:
    try:
        return ring.read_file(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as problem:
        return None, f"{path.name}: {problem.strerror}"
    except ring.UnbornRing:
        return _NOTHING, ""
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


def foreign_lines(path: Path) -> Iterator[int]:
    """Yield the numbers of the lines that are no events. The last one, if it is torn, is not looked at."""
    for number, line in lines_of(path):
        if line is None or (line.strip() and parse_line(line) is None):
            yield number


def lines_of(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number, line) of each whole line; None stands for one that is longer than any event can be."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if line.endswith(b"\n"):
                yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            if line:
                yield number, None


def writable(text: str) -> str:
    """Return text that may have come from any bytes as one that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".ring")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _order(log: LogFile) -> tuple[int, int, str]:
    rank, pid = log.rank, _whole(log.begin.get("pid"))
    return (1 << 31 if rank is None else rank, pid or 0, log.path.name)
