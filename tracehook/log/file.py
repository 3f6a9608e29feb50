"""One log: how it begins and ends, what its process took part in, and what the ring beside it still has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from tracehook.log import calls, packing, ring, ring_place, tallies
from tracehook.log.file_name import PACKED, told_by
from tracehook.log.lines import (
    LONGEST_LINE,
    Event,
    LogError,
    NotALog,
    is_repeated,
    parse_begin,
    parse_line,
    parse_lines,
    whole_lines,
    whole_number,
)
from tracehook.log.text import encodable


@dataclass
class Participation:
    """Whether it used a device or communicators, those of several ranks, and its rank if it learned that late.

    `tells_of_ranks`: it says what happened to others, as a rehearsal does.
    """

    used_device: bool = False
    is_in_groups: bool = False
    communicators: dict[str, Event] = field(default_factory=dict)  # their births, by keys that no other job has
    rank: int | None = None
    world_size: int | None = None
    tells_of_ranks: bool = False

    def add(self, event: Event) -> None:
        """Take an event into account."""
        self.used_device = self.used_device or event.get("device") is not None
        self.is_in_groups = self.is_in_groups or event["event"] == "communicator.pending"
        match event["event"]:
            # The key of an adopted one is made of the group's name, which other jobs have too.
            case "communicator.pending" if (whole_number(event.get("ranks")) or 0) > 1 and not event.get("adopted"):
                self.communicators[str(event.get("comm"))] = event
            case "rank.known":
                self.rank = whole_number(event.get("rank"), 1 << 31)
                self.world_size = whole_number(event.get("world_size"), 1 << 31)
            case "rehearsal.violation" | "rehearsal.hang":
                self.tells_of_ranks = True
            case _:
                pass


_TAIL = 1 << 16
_HEAD = 1 << 18
_LAST_YEAR = 2100  # nanoseconds since 1970 in 63 bits, and as much again for a difference
_NO_EVENTS = ring.RingFile(ring.RingHeader(0, 0, 0, 0, 0, 0, 0, 0), [])


@dataclass(frozen=True)
class LogPart:
    """One file of a log. `text` is what to read: the file itself, or a copy that was unpacked.

    `begin` is its first line. A part after the first begins with a checkpoint: lines that the part before has too.
    """

    path: Path
    text: Path
    begin: Event

    def events(self, is_first: bool) -> Iterator[tuple[int, Event | None]]:
        """Yield the number of each line and its event, None if it is none; `is_first`: of the parts that are left."""
        for number, event in parse_lines(whole_lines(self.text)):
            if event is None or is_first or not (number == 1 or is_repeated(event, self.begin)):
                yield number, event


@dataclass
class LogFile:
    """The log of one process, or what is left of it. `parts` are in the order in which they were written."""

    path: Path
    parts: list[LogPart]
    begin: Event
    ended: bool = False
    torn: bool = False
    cut_event: bool = False  # what is torn is no event
    left: ring.RingFile | None = None  # what had not reached the file
    complaint: str = ""  # why not all of it could be read
    headless: bool = False  # its first line is not there: `begin` is what its name and its siblings tell
    last_ns: int | None = None  # when the last event came that is whole

    @property
    def rank(self) -> int | None:
        """The global rank, if the launcher said one."""
        return rank_of(self.begin)

    @property
    def told_rank(self) -> int | None:
        """The global rank, if the launcher or the default group said one."""
        return self.participation.rank if self.rank is None else self.rank

    @property
    def world_size(self) -> int | None:
        """The number of ranks, likewise."""
        size = whole_number(self.begin.get("world_size"), 1 << 31)
        return self.participation.world_size if size is None else size

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
        if not self.parts:
            return []
        with self.parts[0].text.open("rb") as file:
            return file.read(_HEAD).split(b"\n")[:-1]

    def events_left(self) -> Iterator[Event]:
        """Yield the events of the ring, as the file would have them. Some of them may be in the file."""
        if self.left is None:
            return
        # What came before the last part stands in a part, even if that part is gone.
        last = (whole_number(self.parts[-1].begin.get("from_seq")) or 0) if self.parts else 0
        for record in self.left.records:
            if record.seq < last:
                continue
            name, fields = ring.told_by(record)
            yield {"event": name, **fields, **(self.left.words if name == "python.exception" else {})}
        for found, slot in calls.unlogged(self.left.slots):
            yield {"event": "communicator.calls", "t_ns": found.moved_ns, **calls.fields_of(found)}
            if (counted := tallies.unpack(slot, {})) is not None:
                yield {"event": "communicator.paths", "t_ns": found.moved_ns, **tallies.fields_of(counted)}


def rank_of(begin: Event) -> int | None:
    """Return the global rank in a first line, or in an event ``rank.known``."""
    return whole_number(begin.get("rank"), 1 << 31)


def job_of(begin: Event, field: str = "job") -> str | None:
    """Return the id of the job that this first line names; `launcher_job`: that in its launcher's log, if another."""
    name = begin.get(field)
    return encodable(name) if isinstance(name, str) else None


def began_of(begin: Event) -> datetime | None:
    """Return when the process of this first line began, in UTC, without saying so."""
    try:
        time = datetime.fromisoformat(str(begin.get("time"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time.replace(tzinfo=None) if 1970 <= time.year < _LAST_YEAR else None


def open_log(paths: Sequence[Path], scratch: Path) -> LogFile:
    """Look at the parts of one log, in their order, and at the ring beside it. Packed text goes to `scratch`.

    Raises :class:`LogError` or OSError if it is none that can be read.
    """
    for path in paths:
        if not path.is_file():
            raise LogError(f"{path}: not a regular file")
    first = paths[0]
    # The ring first: what leaves it meanwhile, in a process that still runs, is in the log by then.
    begin = parse_line(packing.first_line(first, LONGEST_LINE)) or {}  # a first line never changes
    left, complaint = _read_ring(ring_place.beside_or_named(first, begin))
    if len(paths) == 1 and first.stat().st_size == 0:
        return _without_lines(first, left, complaint)
    parts = []
    for path in paths:
        text, broken = path, ""
        if path.suffix in PACKED:
            text = scratch / f"{path.name}.unpacked"
            broken = packing.unpack(path, text)
        complaint = complaint or broken
        with text.open("rb") as file:
            line = file.readline(LONGEST_LINE)
        if len(paths) == 1 and left is not None and not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            return _without_lines(path, left, complaint)
        try:
            parts.append(LogPart(path, text, parse_begin(path, line if line.endswith(b"\n") else None)))
        except NotALog as problem:
            if "pid" not in _begin_of(path):
                raise
            raise LogError(str(problem)) from None  # what has the name of a log is one, and damaged
    with parts[-1].text.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
    whole, newline, rest = tail.rpartition(b"\n")
    end = parse_line(whole.rstrip().rpartition(b"\n")[2]) if newline else None
    ended = (end is not None and end["event"] == "trace.end") or (left is not None and left.header.log_ended == 1)
    log = LogFile(first, parts, parts[0].begin, ended, left=left, complaint=complaint)
    in_ring = left.records[-1].t_ns if left is not None and left.records else 0
    log.last_ns = max(in_ring, whole_number((end or {}).get("t_ns")) or 0) or None
    log.torn = bool(rest) or not newline
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
    complaint = f"{path.name}: its .jsonl is missing, read from the ring" if left.header.drained else ""
    return LogFile(path, [], _begin_of(path), left=left, complaint=complaint, headless=True)


def _without_lines(path: Path, left: ring.RingFile | None, complaint: str) -> LogFile:
    """A process that was killed before the first line of its log was whole; what it did may be in the ring."""
    begin = _begin_of(path)
    if left is None and "pid" not in begin:
        raise NotALog(f"{path}: not a tracehook log (it is empty)")
    return LogFile(path, [], begin, left=left, complaint=complaint, headless=True)


def _begin_of(path: Path) -> Event:
    told = told_by(path.name)
    if told is None:
        return {"event": "trace.begin"}
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return {"event": "trace.begin", **told._asdict(), "time": changed.isoformat()}


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
