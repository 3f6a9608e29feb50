"""The logs of a job as a Perfetto trace: what lived when, what was registered where, and what the rules found.

Times in the trace are the `ns` of the tables: nanoseconds since the first process of the job began. Only what
belongs to one process is held at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO

from tracehook.audit.fields import FIELDS
from tracehook.audit.finding import Finding
from tracehook.audit.store import Store
from tracehook.log.text import in_bytes
from tracehook.views.packets import Arguments, Packets, Value

# Nanoseconds since 1970 at time 0 of the tables, by the clock of the process that began first.
_WALL = """
SELECT epoch_ns(began)::HUGEINT - began_ns - shift_ns AS ns FROM process
WHERE began IS NOT NULL AND began_ns IS NOT NULL ORDER BY began_ns::HUGEINT + shift_ns, process LIMIT 1
"""
_PIDS_OF_OURS = 1 << 30  # where a pid is unknown, or is that of two processes (on two hosts)
_COUNTERS = (
    ("segment bytes", "Held by PyTorch's caching allocator, which here includes what it took from pools."),
    ("registered bytes", "Of segments that are registered with at least one communicator, each counted once."),
    ("pool bytes", "Of pools for symmetric memory, from the driver."),
    ("window bytes", "Of pool segments that have at least one window, each counted once."),
)
_OF_PROCESS = (
    *("file", "job", "attempt", "rank", "world_size", "host", "pid", "tracehook", "torch", "cuda", "nccl"),
    *("allocator", "policy", "emulated", "events", "recovered", "lost", "complaint"),
)
_OF_CALLS = (
    *("seq", "segment", "pool_segment", "addr", "size", "us", "thread", "ok", "error", "effective", "ordinal"),
    *("capturing", "count"),
)
# The others are said by where an event stands, and by its name.
_SAID = (
    *("event", "t_ns", "device", "comm", "comm_id", "comm_seq", "comm_rank"),
    *("group", "desc", "members", "rank", "world_size", "involved"),
)
_OF_EVENTS = tuple(name for name in FIELDS if name not in _SAID)
_AT_ONCE = 100_000  # events whose rows are held


def write(store: Store, findings: Iterable[Finding], file: BinaryIO) -> Packets:
    """Write the trace of all that `store` holds to `file`; return what wrote it, which has counted."""
    timeline = _Timeline(store, file)
    timeline.findings(findings)
    timeline.processes()
    timeline.bytes()
    timeline.segments()
    timeline.communicators()
    timeline.registrations()
    timeline.calls()
    timeline.events()
    return timeline.out


class _Timeline:
    def __init__(self, store: Store, file: BinaryIO) -> None:
        self._store = store
        self._processes = {row["process"]: row for row in store.rows("SELECT * FROM process ORDER BY process")}
        self._portions = tuple(_portions(self._processes.values()))
        first = min((row["first_ns"] for row in self._processes.values() if row["first_ns"] is not None), default=0)
        wall = store.rows(_WALL)
        self.out = Packets(file, max(0, -first), wall[0]["ns"] if wall else None)
        self._tracks: dict[tuple[object, ...], int] = {}

    # --- tracks ---

    def _process(self, process: int) -> int:
        return self._tracks[process,]

    def _device(self, process: int, device: int) -> int:
        """The track of a device, made when something happens on it first."""
        key = process, "device", device
        if key not in self._tracks:
            self._tracks[key] = self.out.track(f"device {device}", self._process(process), 1 + min(device, 998))
        return self._tracks[key]

    # --- parts ---

    def findings(self, findings: Iterable[Finding]) -> None:
        """What the rules found, on a track of its own; what has no time stands at the end of its process."""
        track = self.out.track("findings", None, -1, "What tracehook audit reports.")
        for ns, finding in sorted(((self._moment(finding), finding) for finding in findings), key=itemgetter(0)):
            arguments: list[tuple[str, Value]] = [("message", finding.message), ("severity", finding.severity)]
            if finding.ranks:
                arguments.append(("ranks", ", ".join(map(str, finding.ranks))))
            arguments += _present((("comm", finding.comm), ("seq", finding.seq)))
            self.out.instant(track, ns, finding.rule, finding.severity, arguments)

    def processes(self) -> None:
        """A track for each process, and on it how long it logged."""
        pids = Counter(row["pid"] for row in self._processes.values())
        for process, row in self._processes.items():
            pid = row["pid"] if row["pid"] and pids[row["pid"]] == 1 else _PIDS_OF_OURS + process
            self._tracks[process,] = self.out.process(_name_of(row), pid, process, row["argv"] or "")
            log = self._tracks[process, "log"] = self.out.track("log", self._process(process))
            if row["first_ns"] is not None:
                how = "ended" if row["ended"] else "no trace.end: killed, still running, or not written on"
                arguments = [("end", how), *_present((key, row[key]) for key in _OF_PROCESS)]
                self.out.slice(log, row["first_ns"], row["last_ns"], "log", "process", arguments)

    def bytes(self) -> None:
        """The counters of each device."""
        for (process, device, counter), changes in groupby(self._stream("bytes"), itemgetter(0, 1, 2)):
            name, description = _COUNTERS[counter]
            track = self.out.counter(name, self._device(process, device), counter, description)
            held: Counter[int] = Counter()
            total = 0
            for *_, ns, memory, size, change in changes:
                held[memory] += change
                if held[memory] == (1 if change > 0 else 0):  # registered with a second communicator, it counts once
                    total += change * size
                    self.out.count(track, ns, total)

    def segments(self) -> None:
        """How long each segment lived: those of PyTorch's allocator, and those of our pools."""
        for (process, device, kind), lives in groupby(self._stream("lifetimes"), itemgetter(0, 1, 2)):
            rank = len(_COUNTERS) + (kind != "segment")
            lanes = Lanes(partial(self.out.track, f"{kind}s", self._device(process, device), rank))
            for *_, number, born, freed, addr, size, pool in lives:
                start, end = self._lived(process, born, freed)
                how = "freed" if freed is not None else "there at the end of the log"
                arguments = _present((("addr", addr), ("size", size), ("pool", pool), ("end", how)))
                title = f"{kind} {number} ({in_bytes(size, exact=True)})"
                self.out.slice(lanes.place(start, end), start, end, title, kind, arguments)

    def communicators(self) -> None:
        """A track for each communicator, and on it how long it lived."""
        order: Counter[int] = Counter()
        for row in self._stream("communicators"):
            process, comm_id, comm, rank, ranks, device, found, ended, ending, group = row
            order[process] += 1
            member = f"rank {_known(rank)} of {_known(ranks)}"
            name, about = f"comm {comm or '?'} {group or ''}#{comm_id}", f"{member}, device {_known(device)}"
            track = self.out.track(name, self._process(process), 1000 + order[process], about)
            self._tracks[process, "communicator", comm_id] = track
            start, end = self._lived(process, found, ended)
            how = {"retire": "destroyed", "abort": "aborted"}.get(ending, "alive at the end of the log")
            facts = (("comm", comm), ("comm_rank", rank), ("ranks", ranks), ("device", device), ("end", how))
            self.out.slice(track, start, end, f"{member}, {how}", "communicator", _present(facts))

    def registrations(self) -> None:
        """How long each registration was held, below its communicator."""
        for (process, comm_id, kind), rows in groupby(self._stream("registrations"), itemgetter(0, 1, 2)):
            below = self._tracks[process, "communicator", comm_id]
            name, rank = ("registrations", 1) if kind == "local" else ("windows", 2)
            lanes = Lanes(partial(self.out.track, name, below, rank))
            for *_, memory, made, undone, how, addr, size, ordinal, effective in rows:
                start, end = self._lived(process, made, undone)
                what = f"segment {memory}" if kind == "local" else f"window {_known(ordinal)}: pool segment {memory}"
                ended = how or "held at the end of the log"
                arguments = _present((("addr", addr), ("size", size), ("effective", effective), ("end", ended)))
                title = f"{what} ({in_bytes(size, exact=True)})"
                self.out.slice(lanes.place(start, end), start, end, title, f"registration.{kind}", arguments)

    def calls(self) -> None:
        """What was asked of NCCL, for as long as it took; the registrations of a batch are not timed each."""
        for (process, comm_id), calls in groupby(self._stream("calls", _OF_CALLS), itemgetter(0, 1)):
            below = self._tracks[process, "communicator", comm_id]
            lanes = NestingLanes(partial(self.out.track, "calls", below))
            for _, _, event, start, ns, *values in calls:
                self._happening(lanes.place(start, ns), event, "call", start, ns, _named(_OF_CALLS, values))

    def events(self) -> None:
        """What else happened."""
        for (process, comm_id), events in groupby(self._stream("events", _OF_EVENTS), itemgetter(0, 2)):
            below = self._tracks[process, "log"] if comm_id is None else self._tracks[process, "communicator", comm_id]
            lanes = NestingLanes(partial(self.out.track, "agreements and stalls", below, 3))
            for _, device, _, event, start, ns, *values in events:
                track = below if comm_id is not None or device is None else self._device(process, device)
                lane = lanes.place(start, ns) if start < ns else track
                self._happening(lane, event, "event", start, ns, _named(_OF_EVENTS, values))

    # --- how ---

    def _stream(self, name: str, details: Iterable[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query of ``tracks/``, some processes at a time: a result is held while it is read."""
        sql = _query(name).replace("$details", ", ".join(f"event.{column}" for column in details))
        for first, last in self._portions:
            yield from self._store.stream(sql, (first, last))

    def _happening(self, track: int, name: str, category: str, start: int, ns: int, arguments: Arguments) -> None:
        if start < ns:
            self.out.slice(track, start, ns, name, category, arguments)
        else:
            self.out.instant(track, ns, name, category, arguments)

    def _moment(self, finding: Finding) -> int:
        of = self._processes.get(finding.process) if finding.process is not None else None
        return finding.ns if finding.ns is not None else (of and of["last_ns"]) or 0

    def _lived(self, process: int, born: int | None, gone: int | None) -> tuple[int, int]:
        """From when to when to draw something; what has no beginning or end in the log has that of the log."""
        of = self._processes[process]
        start = born if born is not None else min(of["first_ns"], gone if gone is not None else of["first_ns"])
        return start, max(start, gone if gone is not None else of["last_ns"])


def _present(facts: Iterable[tuple[str, Value | None]]) -> list[tuple[str, Value]]:
    return [(name, value) for name, value in facts if value is not None and value != ""]


def _named(names: Iterable[str], values: Iterable[Value | None]) -> list[tuple[str, Value]]:
    return [(name, value) for name, value in zip(names, values, strict=True) if value is not None]


def _portions(processes: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of processes that are next to each other and have about _AT_ONCE events together."""
    first, last, events = 0, -1, 0
    for row in processes:
        last = row["process"]
        events += row["events"]
        if events >= _AT_ONCE:
            yield first, last
            first, events = last + 1, 0
    if first <= last:
        yield first, last


def _query(name: str) -> str:
    return files("tracehook.views").joinpath("timeline_tracks", f"{name}.sql").read_text(encoding="utf-8")


def _name_of(row: dict[str, Any]) -> str:
    """Call a process, a row of table ``process``, what a person would: ``rank 3 (host, pid)``."""
    where = f"({row['host'] or 'host ?'}, {_known(row['pid'])})"
    if row["rank"] is None:
        return f"no rank {where}"
    attempt = f", attempt {row['attempt']}" if row["attempt"] else ""
    return f"rank {row['rank']}{attempt} {where}"


def _known(value: object) -> object:
    """Return it, or a question mark if the log does not say."""
    return "?" if value is None else value


# --- intervals that overlap, in lanes: on one track of a trace, slices have to nest ---


class Lanes:
    """Gives each interval the first lane in which nothing else lies at that time.

    Intervals come in the order of their start. `new` makes a lane and returns what stands for it.
    """

    def __init__(self, new: Callable[[], int]) -> None:
        self._new = new
        self._lanes: list[int] = []
        self._free: list[int] = []  # a heap of places in _lanes
        self._busy: list[tuple[int, int]] = []  # a heap of (end, place)

    def place(self, start: int, end: int) -> int:
        """Return the lane for the interval from `start` to `end`."""
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            place = heapq.heappop(self._free)
        else:
            place = len(self._lanes)
            self._lanes.append(self._new())
        heapq.heappush(self._busy, (end, place))
        return self._lanes[place]


class NestingLanes:
    """Like :class:`Lanes`, but an interval may lie inside another one in its lane: calls do, lifetimes do not.

    Intervals come in the order of their start, and of two that start together the longer one first.
    """

    def __init__(self, new: Callable[[], int]) -> None:
        self._new = new
        self._lanes: list[tuple[int, list[int]]] = []  # with the ends of what is open, the innermost last

    def place(self, start: int, end: int) -> int:
        """Return the lane for the interval from `start` to `end`."""
        for lane, ends in self._lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        lane = self._new()
        self._lanes.append((lane, [end]))
        return lane
