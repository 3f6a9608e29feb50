"""What ``tracehook watch`` shows: a table of all processes, or one line. Text of logs is shown, never obeyed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tracehook.audit.finding import ranges
from tracehook.audit.live import Follower
from tracehook.audit.live_hosts import by_rank, hosts_of
from tracehook.audit.live_process import Process, State
from tracehook.audit.live_waits import Hang
from tracehook.commands import watch_hosts
from tracehook.commands.watch_cells import COLUMNS, numbers, row_of, style, told_seconds
from tracehook.commands.watch_hosts import HEADER, fill
from tracehook.log.lines import whole_number
from tracehook.log.tables import said
from tracehook.log.text import in_bytes, many, printable

_LINES_AROUND = 9  # of the terminal, that are no rows of processes
_HANGS = 2  # that are shown
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
    more = fill(table, hosts, follower.now, lines) if hosts else _fill(table, everyone, follower.now, lines)
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
    """Return what ``watch --once --json`` prints (docs/watch.md)."""
    shown = sorted(follower.processes.items(), key=lambda item: by_rank(item[1]))
    return {
        "version": 1,
        "directory": str(follower.directory),
        "processes": [{"file": name, **_told(process, follower.now)} for name, process in shown],
        "hosts": [watch_hosts.as_json(host) for host in hosts_of(follower.processes.values(), follower.now)],
        "waits": [_told_hang(hang) for hang in follower.hangs],
        "not_read": follower.skipped,
    }


def _told_hang(hang: Hang) -> dict[str, Any]:
    made = [{"calls": count, "by": names} for count, names in hang.made.items()]
    return hang._asdict() | {"made": made}


def _told(process: Process, now: float) -> dict[str, Any]:
    state, seconds = process.state(now)
    return {
        "host": process.begin.get("host"),
        "job": process.begin.get("job"),
        "rank": process.summary.rank,
        "pid": process.summary.pid,
        "state": state.value,
        "seconds": round(seconds, 3),
        **dict(zip(watch_hosts.NAMES, process.numbers, strict=True)),
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
    where = f" on {watch_hosts.shown_name(process.host)}" if with_host else ""
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
    return {(hang.group, hang.call): _hang(hang, _where(hang, follower)) for hang in follower.hangs[:_HANGS]}


def _where(hang: Hang, follower: Follower) -> str:
    """Return on which hosts the ranks are that did not come, if there are several hosts, and these are few."""
    if follower.host_count < 2:
        return ""
    missing = set(hang.missing)
    hosts = {process.host for process in follower.processes.values() if process.name in missing}
    named = ", ".join(sorted(map(watch_hosts.shown_name, hosts)))
    return f" on {named}" if 0 < len(hosts) <= _HOSTS_TOLD else f" on {len(hosts)} hosts"


def _hang(hang: Hang, where: str) -> str:
    counts = ((_many(names), many(count, "call")) for count, names in hang.made.items())
    made = "; ".join(f"{names} made {count}" for names, count in counts)
    waits = "waits" if len(hang.waiting) == 1 else "wait"
    return clean(
        f"{hang.group}: {f'{made}; ' if made else ''}{_many(hang.waiting)} {waits} for {_many(hang.missing)}{where} in "
        f"{hang.call}, for {told_seconds(hang.seconds)}",
        300,
    )


def _many(names: Sequence[str]) -> str:
    ranks = sorted(int(name.removeprefix("rank ")) for name in names if name.startswith("rank "))
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}" if len(ranks) == len(names) else ", ".join(names)


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
