"""What ``tracehook watch`` shows: a table of all processes, or one line. Text of logs is shown, never obeyed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tracehook.audit.live import Follower
from tracehook.audit.live_process import Process, State
from tracehook.audit.live_waits import Hang
from tracehook.audit.stacks import told_places
from tracehook.log.lines import whole_number
from tracehook.log.tables import said
from tracehook.log.text import (
    host_name,
    in_bytes,
    many,
    natural,
    plural,
    printable,
    ranges_of,
    ranks_in_words,
    told_ranges,
)


class Concern(IntEnum):
    """Why somebody should look at a process, the worst first."""

    STUCK = 0
    SILENT = 1
    NO_END = 2
    WARNED = 3  # warnings, problems, calls that NCCL refused
    NONE = 4


_OF_STATE = {
    State.STUCK: Concern.STUCK,
    State.GONE: Concern.SILENT,
    State.SILENT: Concern.SILENT,
    State.NO_END: Concern.NO_END,
}
_FROM_WORST = (State.STUCK, State.GONE, State.SILENT, State.NO_END, State.QUIET, State.RUNNING, State.ENDED)


@dataclass
class WatchedHost:
    """The processes of one host."""

    name: str
    processes: list[Process] = field(default_factory=list)
    states: Counter[State] = field(default_factory=Counter)
    longest: dict[State, float] = field(default_factory=dict)  # seconds since when, of the first of each state
    troubled: list[tuple[Concern, float, Process]] = field(default_factory=list)  # the worst first, with seconds

    def add(self, process: Process, now: float) -> None:
        """Take a process into account."""
        state, seconds = process.state(now)
        self.processes.append(process)
        self.states[state] += 1
        self.longest[state] = max(seconds, self.longest.get(state, 0.0))
        concern = _OF_STATE.get(state, Concern.WARNED if process.alerts else Concern.NONE)
        if concern != Concern.NONE:
            self.troubled.append((concern, seconds, process))

    @property
    def worst(self) -> State:
        """The worst state of its processes."""
        return next(state for state in _FROM_WORST if self.states[state])

    @property
    def concern(self) -> Concern:
        """That of its worst process."""
        return self.troubled[0][0] if self.troubled else Concern.NONE


def hosts_of(processes: Iterable[Process], now: float) -> list[WatchedHost]:
    """Return the hosts of these processes, those in trouble first, of these the one whose trouble is worst."""
    hosts: dict[str, WatchedHost] = {}
    for process in processes:
        hosts.setdefault(process.host, WatchedHost(process.host)).add(process, now)
    for host in hosts.values():
        host.troubled.sort(key=lambda each: (each[0], -int(each[1]), by_rank(each[2])))
    return sorted(hosts.values(), key=_place)


def by_rank(process: Process) -> tuple[bool, int, int]:
    """Return what processes are sorted by."""
    summary = process.summary
    return summary.rank is None, summary.rank or 0, summary.pid


def _place(host: WatchedHost) -> tuple[object, ...]:
    concern = host.concern
    alike = [seconds for each, seconds, _ in host.troubled if each == concern]
    # Who is well stands where it stood at the last look.
    longest = -int(max(alike, default=0.0)) if concern != Concern.WARNED else 0
    return concern, -len(alike), longest, natural(host.name)


COLUMNS = ("segs", "bytes", "comms", "held", "ev/s", "reg/s", "warn", "ring", "dropped")  # of numbers
_STYLES = dict.fromkeys(_OF_STATE, "red") | {State.QUIET: "yellow", State.ENDED: "dim"}
_WITH_SECONDS = (State.QUIET, State.STUCK, State.SILENT, State.GONE)


def numbers(processes: Collection[Process]) -> list[str]:
    """Return the sums of the columns."""
    segments, size, communicators, held, alerts, waiting, dropped = map(
        sum, zip(*(process.numbers for process in processes), strict=True)
    )
    rates = [rate for process in processes if (rate := process.rates()) is not None]
    return [
        str(segments),
        in_bytes(size),
        str(communicators),
        str(held),
        *((f"{sum(column):.1f}" for column in zip(*rates, strict=True)) if rates else ("-", "-")),
        str(alerts),
        str(waiting),
        str(dropped),
    ]


def row_of(process: Process, now: float) -> list[str]:
    """Return the cells of one process: rank, pid, state and the numbers."""
    rank = "-" if process.summary.rank is None else str(process.summary.rank)
    return [rank, str(process.summary.pid), state_cell(*process.state(now)), *numbers([process])]


def state_cell(state: State, seconds: float) -> str:
    """Say a state, and of those that may be bad since when."""
    return f"{state} {told_seconds(seconds)}" if state in _WITH_SECONDS else str(state)


def style(state: State, has_alerts: bool) -> str:
    """Return how a row looks."""
    return "bold red" if has_alerts else _STYLES.get(state, "")


def told_seconds(seconds: float) -> str:
    """Return a time in the largest unit of which there are two or more."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


_MOST_OF_HOST = 8  # processes that are shown of one host
_FEW = 2  # processes of a host in trouble that are shown before hosts that are well
_LONGEST_RANKS = 13
_LINES_TOLD = 8  # of hosts that come into trouble, at one look

NAMES = ("segments", "bytes", "communicators", "held", "warnings", "waiting", "dropped")  # in JSON, of the numbers
HEADER = ("host", "ranks", "state", *COLUMNS)


def _fill_hosts(table: Table, hosts: Sequence[WatchedHost], now: float, lines: int | None) -> str:
    """Add the rows of hosts and of their worst processes, at most `lines`; return what to say of the other hosts."""
    of_each = _MOST_OF_HOST if lines is None else _processes_shown(hosts, lines)
    shown = hosts if lines is None else _fitting(hosts, of_each, lines)
    for host in shown:
        worst = host.worst
        state = f"{host.states[worst]} {state_cell(worst, host.longest[worst])}"
        row = (host_name(host.name), told_ranks(host), state, *numbers(host.processes))
        table.add_row(*map(Text, row), style=style(worst, any(process.alerts for process in host.processes)))
        for _, _, process in host.troubled[:of_each]:
            rank, pid, *rest = row_of(process, now)
            who = f"  rank {rank}" if process.summary.rank is not None else "  no rank"
            table.add_row(
                *map(Text, (who, f"pid {pid}", *rest)), style=style(process.state(now)[0], bool(process.alerts))
            )
    return _others(hosts[len(shown) :])


def _processes_shown(hosts: Sequence[WatchedHost], lines: int) -> int:
    """Return how many processes of each host in trouble there is room for."""
    troubled = [len(host.troubled) for host in hosts if host.troubled]
    for most in range(_MOST_OF_HOST, 0, -1):
        needed = len(troubled) + sum(min(most, count) for count in troubled)
        if needed + (len(hosts) - len(troubled) if most > _FEW else 0) <= lines:
            return most
    return 0 if len(troubled) > lines // 2 else 1


def _fitting(hosts: Sequence[WatchedHost], of_each: int, lines: int) -> Sequence[WatchedHost]:
    for count, host in enumerate(hosts):
        lines -= 1 + len(host.troubled[:of_each])
        if lines < 0:
            return hosts[:count]
    return hosts


def _others(hosts: Sequence[WatchedHost]) -> str:
    if not hosts:
        return ""
    more = f"and {len(hosts):,} more {plural(len(hosts), 'host')}"
    troubled = sum(bool(host.troubled) for host in hosts)
    return f"{more}, {'all well' if not troubled else f'{troubled} of them in trouble'}"


def told_ranks(host: WatchedHost) -> str:
    """Return the ranks of a host, or, if these would take too long to say, how many there are."""
    ranks = {process.summary.rank for process in host.processes} - {None}
    told = told_ranges(ranges_of(sorted({rank for rank in ranks if rank is not None})))
    if len(ranks) < len(host.processes) or len(told) > _LONGEST_RANKS:
        return f"{len(host.processes)} in all"
    return told


class Changes:
    """The hosts that came into trouble since the last look, as lines."""

    def __init__(self) -> None:
        self._known: dict[str, Concern] = {}

    def lines(self, hosts: Sequence[WatchedHost]) -> Iterator[str]:
        """Yield a line for each host that is worse than at the last look; warnings have lines of their own."""
        now = {host.name: host.concern for host in hosts if host.concern < Concern.WARNED}
        worse = [
            host for host in hosts if host.name in now and now[host.name] < self._known.get(host.name, Concern.NONE)
        ]
        for host in worse[:_LINES_TOLD]:
            yield _told_host(host)
        if len(worse) > _LINES_TOLD:
            yield f"and {len(worse) - _LINES_TOLD} more hosts like these"
        self._known = now


def _told_host(host: WatchedHost) -> str:
    worst = [(seconds, process) for concern, seconds, process in host.troubled if concern == host.concern]
    state = state_cell(host.worst, max(seconds for seconds, _ in worst))
    who = names_of([process for _, process in worst])
    return f"{host_name(host.name)}: {who} {state}, of {len(host.processes)} processes"


def names_of(processes: Sequence[Process]) -> str:
    """Name processes by their ranks, as in ``ranks 3, 5-7``, or by their number."""
    ranks = [process.summary.rank for process in processes if process.summary.rank is not None]
    words = [ranks_in_words(ranks)] if ranks else []
    words += [f"pid {process.summary.pid}" for process in processes if process.summary.rank is None][:_LINES_TOLD]
    return ", ".join(words)


def _host_as_json(host: WatchedHost) -> dict[str, Any]:
    """Return what ``--json`` prints of a host (schemas/watch.json)."""
    return {
        "host": host.name,
        "processes": len(host.processes),
        "ranks": sorted(process.summary.rank for process in host.processes if process.summary.rank is not None),
        "states": {state.value: host.states[state] for state in State},
        "in_trouble": len(host.troubled),
        **dict(zip(NAMES, map(sum, zip(*(process.numbers for process in host.processes), strict=True)), strict=True)),
    }


_LINES_AROUND = 9  # of the terminal, that are no rows of processes
_HANGS = 2  # that are shown
_STAND_STILL = {
    State.SILENT: "stopped, killed, or a thread keeps the GIL",
    State.GONE: "its process ended without a last line in its log",
}
_LINES_ABOUT_JOBS = 3  # more, that the sentence about other jobs may take
_HOSTS_TOLD = 2  # of ranks that others wait for


def picture(follower: Follower, height: int | None = None, by_host: bool = True) -> Group:
    """Return title, table and remarks, of at most `height` lines.

    `by_host`: a job on several hosts has a row for each host, and not for each process.
    """
    if not follower.processes:
        return Group(Text(nothing(follower)))
    hosts = hosts_of(follower.processes.values(), follower.now) if by_host and follower.host_count > 1 else []
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in HEADER if hosts else ("rank", "pid", "state", *COLUMNS):
        table.add_column(column, justify="left" if column == "host" else "right", no_wrap=True)
    everyone = list(follower.processes.values())
    table.add_row("all", "", "", *numbers(everyone), style="bold")
    # A hang may take two lines.
    around = _LINES_AROUND + 2 * len(told_hangs(follower)) + (_LINES_ABOUT_JOBS if follower.left_out else 0)
    lines = None if height is None else max(1, height - around)
    more = _fill_hosts(table, hosts, follower.now, lines) if hosts else _fill(table, everyone, follower.now, lines)
    below = [Text(line) for line in (more, *_remarks(follower)) if line]
    return Group(Text(f"{clean(str(follower.directory))}: {_states(follower)}"), table, *below)


def _fill(table: Table, everyone: list[Process], now: float, lines: int | None) -> str:
    """Add the rows of processes, at most `lines`; return what to say of the others."""
    rows = _chosen(everyone, now, lines)
    for process in rows:
        row = style(process.state(now)[0], bool(process.alerts))
        table.add_row(*map(Text, row_of(process, now)), style=row)
    return f"and {len(everyone) - len(rows)} more" if len(rows) < len(everyone) else ""


def sentence(follower: Follower) -> str:
    """Return the state of all processes as one line."""
    segments, size, communicators, held, events, made, alerts, waiting, dropped = numbers(follower.processes.values())
    rates = "" if events == "-" else f"; {events} events/s, {made} registrations/s"
    return (
        f"{_states(follower)}; {many(int(segments), 'segment')}, {size}; {many(int(communicators), 'communicator')}; "
        f"{many(int(held), 'registration')} held"
        f"{rates}; {many(int(alerts), 'warning')}; {many(int(waiting), 'event')} in rings, {dropped} dropped"
        f"{f'; {_behind(follower)}' if follower.behind else ''}"
    )


def as_json(follower: Follower) -> dict[str, Any]:
    """Return what ``watch --once --json`` prints (schemas/watch.json)."""
    shown = sorted(follower.processes.items(), key=lambda item: by_rank(item[1]))
    return {
        "version": 1,
        "directory": str(follower.directory),
        "processes": [{"file": name, **_told(process, follower.now)} for name, process in shown],
        "hosts": [_host_as_json(host) for host in hosts_of(follower.processes.values(), follower.now)],
        "waits": [_told_hang(hang) for hang in follower.hangs],
        "not_read": follower.skipped,
    }


def _told_hang(hang: Hang) -> dict[str, Any]:
    made = [{"calls": count, "by": names} for count, names in hang.made.items()]
    return hang._asdict() | {"made": made, "places": [place._asdict() for place in hang.places]}


def _told(process: Process, now: float) -> dict[str, Any]:
    state, seconds = process.state(now)
    return {
        "host": process.begin.get("host"),
        "job": process.begin.get("job"),
        "rank": process.summary.rank,
        "pid": process.summary.pid,
        "state": state.value,
        "seconds": round(seconds, 3),
        **dict(zip(NAMES, process.numbers, strict=True)),
        "latest": process.latest,
    }


def alert(process: Process, with_host: bool = False) -> str:
    """Return the latest event of a process that somebody should look at, in words."""
    event = process.latest or {"event": ""}
    text = said(event | _named(process, event))
    when = process.time_of(event)
    clock = ""
    if when is not None and 0 <= when < 1 << 33:
        clock = f"{datetime.fromtimestamp(when):%H:%M:%S} "
    where = f" on {host_name(process.host)}" if with_host else ""
    return clean(f"{clock}{process.name}{where}: {text}", 300)


def _named(process: Process, event: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that name a communicator and ranks of it as the job knows them."""
    key = str(event.get("comm"))
    group = process.groups.get(key)
    if group is None:
        return {}
    ranks = {name: whole_number(event.get(name)) for name in ("missing_rank", "other_rank")}
    told = {name: group.rank(rank) for name, rank in ranks.items() if rank is not None}
    return told | {"comm": group.beside(key)}


def clean(text: str, most: int = 200) -> str:
    """Return text of a log or a file name as a line that shows where a terminal would have obeyed it."""
    return printable(text, most, instead="?")


def nothing(follower: Follower) -> str:
    """Return why there is nothing to show."""
    directory = clean(str(follower.directory))
    if follower.missing:
        return clean(follower.missing, 600)
    if follower.skipped:
        return f"{directory}: no log that can be read; {_skipped(follower)}"
    if not follower.directory.is_dir():
        return f"{directory}: not there yet; expected the directory that SYMM_REGISTER_LOG names"
    return f"{directory}: no .jsonl log in it yet; is SYMM_REGISTER_HOOK=1 set, and torch imported?"


def _skipped(follower: Follower) -> str:
    name, why = next(iter(follower.skipped.items()))
    more = f" (and {len(follower.skipped) - 1} more)" if len(follower.skipped) > 1 else ""
    return f"not read: {clean(why if name in why else f'{name}: {why}')}{more}"


def _states(follower: Follower) -> str:
    counts = Counter(process.state(follower.now)[0] for process in follower.processes.values())
    parts = [f"{counts[state]} {state}" for state in State if counts[state]]
    count, hosts = len(follower.processes), follower.host_count
    where = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{many(count, 'process')}{where}: {', '.join(parts)}"


def told_hangs(follower: Follower) -> dict[tuple[str, str], str]:
    """Return who waits for whom, in words, by group and call: at most two, the causes first."""
    return {
        (hang.group, hang.call): _hang(hang, _where(hang, follower), _silent(hang, follower))
        for hang in follower.hangs[:_HANGS]
    }


def _where(hang: Hang, follower: Follower) -> str:
    """Return on which hosts the ranks are that did not come, if there are several hosts, and these are few."""
    if follower.host_count < 2:
        return ""
    missing = set(hang.missing)
    hosts = {process.host for process in follower.processes.values() if process.name in missing}
    named = ", ".join(sorted(map(host_name, hosts)))
    return f" on {named}" if 0 < len(hosts) <= _HOSTS_TOLD else f" on {len(hosts)} hosts"


def _silent(hang: Hang, follower: Follower) -> str:
    """Say which ranks that did not come stand still as a whole, or are gone."""
    said = ""
    for state, why in _STAND_STILL.items():
        its = [
            process.name
            for process in follower.processes.values()
            if process.name in hang.missing and process.state(follower.now)[0] is state
        ]
        said += f"; {_many(its)} {'is' if len(its) == 1 else 'are'} {state} ({why})" if its else ""
    return said


def _hang(hang: Hang, where: str, silent: str) -> str:
    counts = ((_many(names), many(count, "call")) for count, names in hang.made.items())
    made = "; ".join(f"{names} made {count}" for names, count in counts)
    waits = "waits" if len(hang.waiting) == 1 else "wait"
    told = (
        f"{hang.group}: {f'{made}; ' if made else ''}{_many(hang.waiting)} {waits} for {_many(hang.missing)}{where} in "
        f"{hang.call}, for {told_seconds(hang.seconds)}{silent}"
    )
    return clean("; ".join([told, *told_places(hang.places, ("was", "were"))]), 400)


def _many(names: Sequence[str]) -> str:
    ranks = sorted(int(name.removeprefix("rank ")) for name in names if name.startswith("rank "))
    return ranks_in_words(ranks) if len(ranks) == len(names) else ", ".join(names)


def _remarks(follower: Follower) -> Iterator[str]:
    yield from told_hangs(follower).values()
    if len(follower.hangs) > _HANGS:
        yield f"ranks wait in {len(follower.hangs) - _HANGS} more calls"
    if follower.left_out:
        yield clean(follower.left_out, 300)
    if follower.behind:
        yield _behind(follower)
    if follower.skipped:
        yield _skipped(follower)
    if foreign := sum(process.foreign for process in follower.processes.values()):
        yield f"{foreign} lines are no events"
    told = [process for process in follower.processes.values() if process.latest is not None]
    if told:
        latest = max(told, key=lambda process: process.time_of(process.latest or {}) or 0.0)
        yield alert(latest, follower.host_count > 1)


def _behind(follower: Follower) -> str:
    return f"still reading: {in_bytes(follower.behind)} to go"


def _chosen(processes: list[Process], now: float, most: int | None) -> list[Process]:
    """Return all processes by rank, or, if these are too many, those of concern first."""
    everyone = sorted(processes, key=by_rank)
    if most is None or len(everyone) <= most:
        return everyone

    def concern(process: Process) -> tuple[bool, bool, int]:
        state, seconds = process.state(now)
        return not process.alerts, state is State.ENDED, 0 if state is State.RUNNING else -int(seconds)

    return sorted(everyone, key=concern)[:most]
