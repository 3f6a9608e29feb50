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
from tracehook.audit.live import Follower, Process, State
from tracehook.audit.live_waits import Hang
from tracehook.log.lines import whole_number
from tracehook.log.tables import said
from tracehook.log.text import in_bytes, printable

_COLUMNS = ("rank", "pid", "state", "segs", "bytes", "comms", "held", "ev/s", "reg/s", "warn", "ring", "dropped")
_LINES_AROUND = 9  # of the terminal, that are no rows of processes
_HANGS = 2  # that are shown
_LINES_ABOUT_JOBS = 3  # more, that the sentence about other jobs may take
_STYLES = {State.STUCK: "red", State.SILENT: "red", State.NO_END: "red", State.QUIET: "yellow", State.ENDED: "dim"}


def picture(follower: Follower, height: int | None = None) -> Group:
    """Return title, table and remarks, of at most `height` lines."""
    if not follower.processes:
        return Group(Text(nothing(follower)))
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    everyone = list(follower.processes.values())
    table.add_row(*_total(everyone), style="bold")
    # A hang may take two lines.
    around = _LINES_AROUND + 2 * len(told_hangs(follower)) + (_LINES_ABOUT_JOBS if follower.left_out else 0)
    rows = _chosen(follower, None if height is None else max(1, height - around))
    for process in rows:
        state, _ = process.state(follower.now)
        style = "bold red" if process.alerts else _STYLES.get(state, "")
        table.add_row(*(Text(cell) for cell in _cells(process, follower.now)), style=style)
    below = [Text(line) for line in _remarks(follower)]
    if len(rows) < len(everyone):
        below.insert(0, Text(f"and {len(everyone) - len(rows)} more"))
    return Group(Text(f"{clean(str(follower.directory))}: {_states(follower)}"), table, *below)


def sentence(follower: Follower) -> str:
    """Return the state of all processes as one line."""
    _, _, _, segments, size, communicators, held, events, made, alerts, waiting, dropped = _total(
        list(follower.processes.values())
    )
    rates = "" if events == "-" else f"; {events} events/s, {made} registrations/s"
    return (
        f"{_states(follower)}; {segments} segments, {size}; {communicators} communicators; {held} registrations held"
        f"{rates}; {alerts} warnings; {waiting} events in rings, {dropped} dropped"
    )


def as_json(follower: Follower) -> dict[str, Any]:
    """Return what ``watch --once --json`` prints (docs/watch.md)."""
    shown = sorted(follower.processes.items(), key=lambda item: _by_rank(item[1]))
    return {
        "version": 1,
        "directory": str(follower.directory),
        "processes": [{"file": name, **_told(process, follower.now)} for name, process in shown],
        "waits": [_told_hang(hang) for hang in follower.hangs],
        "not_read": follower.skipped,
    }


def _told_hang(hang: Hang) -> dict[str, Any]:
    made = [{"calls": count, "by": names} for count, names in hang.made.items()]
    return hang._asdict() | {"made": made}


def _told(process: Process, now: float) -> dict[str, Any]:
    summary = process.summary
    state, seconds = process.state(now)
    return {
        "host": process.begin.get("host"),
        "job": process.begin.get("job"),
        "rank": summary.rank,
        "pid": summary.pid,
        "state": state.value,
        "seconds": round(seconds, 3),
        "segments": max(0, summary.segments - summary.segments_freed),
        "bytes": process.bytes,
        "communicators": max(0, summary.communicators - summary.destroyed - summary.aborted),
        "held": summary.left + summary.windows.left,
        "warnings": process.alerts,
        "waiting": process.waiting,
        "dropped": process.dropped,
        "latest": process.latest,
    }


def alert(process: Process) -> str:
    """Return the latest event of a process that somebody should look at, in words."""
    event = process.latest or {"event": ""}
    text = said(event | _named(process, event))
    when = process.time_of(event)
    clock = ""
    if when is not None and 0 <= when < 1 << 33:
        clock = f"{datetime.fromtimestamp(when):%H:%M:%S} "
    who = f"pid {process.summary.pid}" if process.summary.rank is None else f"rank {process.summary.rank}"
    return clean(f"{clock}{who}: {text}", 300)


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
    count = len(follower.processes)
    return f"{count} process{'' if count == 1 else 'es'}: {', '.join(parts)}"


def told_hangs(follower: Follower) -> dict[tuple[str, str], str]:
    """Return who waits for whom, in words, by group and call: at most two, the causes first."""
    return {(hang.group, hang.call): _hang(hang) for hang in follower.hangs[:_HANGS]}


def _hang(hang: Hang) -> str:
    counts = ((_many(names), f"{count} call{'' if count == 1 else 's'}") for count, names in hang.made.items())
    made = "; ".join(f"{names} made {count}" for names, count in counts)
    waits = "waits" if len(hang.waiting) == 1 else "wait"
    return clean(
        f"{hang.group}: {f'{made}; ' if made else ''}{_many(hang.waiting)} {waits} for {_many(hang.missing)} in "
        f"{hang.call}, for {_seconds(hang.seconds)}",
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
        yield f"still reading: {in_bytes(follower.behind)} to go"
    if follower.skipped:
        yield _skipped(follower)
    if foreign := sum(process.foreign for process in follower.processes.values()):
        yield f"{foreign} lines are no events"
    told = [process for process in follower.processes.values() if process.latest is not None]
    if told:
        yield alert(max(told, key=lambda process: process.time_of(process.latest or {}) or 0.0))


def _chosen(follower: Follower, most: int | None) -> list[Process]:
    """Return all processes by rank, or, if these are too many, those of concern first."""
    everyone = sorted(follower.processes.values(), key=_by_rank)
    if most is None or len(everyone) <= most:
        return everyone

    def concern(process: Process) -> tuple[bool, bool, int]:
        state, seconds = process.state(follower.now)
        return not process.alerts, state is State.ENDED, 0 if state is State.RUNNING else -int(seconds)

    return sorted(everyone, key=concern)[:most]


def _by_rank(process: Process) -> tuple[bool, int, int]:
    summary = process.summary
    return summary.rank is None, summary.rank or 0, summary.pid


def _cells(process: Process, now: float) -> list[str]:
    summary = process.summary
    state, seconds = process.state(now)
    since = f" {_seconds(seconds)}" if state in (State.QUIET, State.STUCK, State.SILENT) else ""
    return [
        "-" if summary.rank is None else str(summary.rank),
        str(summary.pid),
        f"{state}{since}",
        *_numbers([process]),
    ]


def _total(processes: list[Process]) -> list[str]:
    return ["all", "", "", *_numbers(processes)]


def _numbers(processes: list[Process]) -> list[str]:
    summaries = [process.summary for process in processes]
    rates = [rate for process in processes if (rate := process.rates()) is not None]
    return [
        str(sum(max(0, one.segments - one.segments_freed) for one in summaries)),
        in_bytes(sum(process.bytes for process in processes)),
        str(sum(max(0, one.communicators - one.destroyed - one.aborted) for one in summaries)),
        str(sum(one.left + one.windows.left for one in summaries)),
        *((f"{sum(column):.1f}" for column in zip(*rates, strict=True)) if rates else ("-", "-")),
        str(sum(process.alerts for process in processes)),
        str(sum(process.waiting for process in processes)),
        str(sum(process.dropped for process in processes)),
    ]


def _seconds(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
