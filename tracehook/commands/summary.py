"""``tracehook summary``: a table of what each process of a job did, from its logs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tracehook.audit.group import NAMED, NamedGroup, group_in, groups_of
from tracehook.audit.selection import NEWEST, Selection, select
from tracehook.audit.summary import Summary, launchers, summarise
from tracehook.commands.logs_options import All, AsJson, Job, LogDirectory, Since, plain, readable, selection, tell
from tracehook.commands.printed import console_for
from tracehook.log.directory import Directory
from tracehook.log.file import LogFile
from tracehook.log.lines import Event, whole_number
from tracehook.log.reader import ProcessLog, read_each
from tracehook.log.tallies import parse
from tracehook.log.text import host_name, in_bytes, many, printable
from tracehook.nccl.counts import PathCount, counted

_MOST_GROUPS = 12  # that are named
_LEGEND = (
    "ended, aborted: of the comms; regs: registrations; dropped: those that went with an aborted comm; left: those "
    "that were never undone; held: windows that were never undone; failed: calls that NCCL refused; log: how the "
    "process ended (open: the log does not say)"
)


@dataclass(frozen=True)
class _Read:
    """What was read of a directory: the logs of one job, each with its counts.

    Of their events only those are kept that are shown by themselves.
    """

    logs: list[ProcessLog]
    rows: list[Summary]
    unreadable: list[str]
    left_out: str


def summary(
    directory: LogDirectory,
    show_all: All = False,
    as_json: AsJson = False,
    paths: Annotated[
        bool, typer.Option("--paths", help="Count collectives instead, by the path that NCCL took for them.")
    ] = False,
    ranks: Annotated[bool, typer.Option("--ranks", help="A row for each process, also of more than 64.")] = False,
    job: Job = None,
    since: Since = None,
) -> None:
    """Count segments and registrations of each process.

    Of the logs of a job, a row for each process. Exit status 2 if the directory holds no log.
    """
    with readable("summary"):
        read = _read(directory, selection(job, since))
    tell("summary", read.left_out)
    if as_json:
        typer.echo(json.dumps(_as_json(directory, read, show_all, paths=paths), indent=1))
    elif paths:
        _show_paths(read.logs)
        _complain(read)
    else:
        _show(read, show_all, ranks)


def show(directory: Path, since: float) -> None:
    """Print the table of a rehearsal: of the logs of `directory` written at or after `since` (as time.time()).

    Files that cannot be read, or not all of them, get a line each. Raises :class:`LogError` if there is no log.
    """
    read = _read(directory, NEWEST, since)
    tell("rehearse", read.left_out)
    _show(read, show_all=False, ranks=False)


def _read(directory: Path, wanted: Selection, since: float = 0.0) -> _Read:
    misnamed: list[str] = []
    unreadable: list[str] = []
    left_out: list[str] = []
    named: set[str] = set()

    def chosen(found: Directory) -> list[LogFile]:
        selected = select(found, wanted)
        left_out.append(selected.left_out)
        return selected.logs

    def is_shown(event: Event) -> bool:
        if event["event"] == NAMED:  # on all ranks of a group alike, and with all of them in it
            comm = str(event.get("comm"))
            is_new = comm not in named
            named.add(comm)
            return is_new
        return bool(event["event"] == _COUNTED_PATHS)

    read = []
    for log in read_each(directory, since, chosen, misnamed, unreadable):
        row = summarise(log)
        log.events = [event for event in log.events if is_shown(event)]
        read.append((log, row))
    read.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0))  # a rank may stand within the log
    logs, rows = [log for log, _ in read], [row for _, row in read]
    return _Read(logs, rows, misnamed + unreadable, "".join(left_out))


def _show(read: _Read, show_all: bool, ranks: bool) -> None:
    hidden = set[int]() if show_all else launchers(read.rows)
    placed = [
        (str(log.begin.get("host") or "?"), row)
        for number, (log, row) in enumerate(zip(read.logs, read.rows, strict=True))
        if number not in hidden
    ]
    rows = [row for _, row in placed]
    with_windows = any(row.windows.made for row in rows)
    if ranks or len(rows) <= _MOST_PROCESSES:
        table = _new_table(f"tracehook: {many(len(rows), 'process')}", ("rank", "pid"), with_windows)
        for row in rows:
            table.add_row(*_cells_of(row, with_windows))
        more = ""
    else:
        table, more = _troubled_table(placed, with_windows)
    console = console_for(table)
    console.print(table)
    console.print(more)
    console.print(_LEGEND, style="dim")
    for line in _remarks(rows, len(hidden)):
        console.print(line)
    if groups := groups_of(read.logs):
        more = f" and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
        named = ", ".join(printable(str(group), 80, instead="?") for group in groups[:_MOST_GROUPS])
        console.print(f"groups: {named}{more}", highlight=False, markup=False)
    _complain(read)


def _complain(read: _Read) -> None:
    for line in read.unreadable:
        typer.echo(f"tracehook: not read: {plain(line)}", err=True)
    for log in read.logs:
        if log.complaint:
            typer.echo(f"tracehook: {plain(log.complaint)}", err=True)


def _remarks(rows: list[Summary], hidden: int) -> list[str]:
    lines = []
    if hidden:
        what = f"{many(hidden, 'process')} with neither rank nor device"
        lines.append(f"the table leaves out {what}, such as launchers; --all shows them")
    recovered = [row.recovered for row in rows if row.recovered]
    if recovered:
        lines.append(f"{many(sum(recovered), 'event')} of {many(len(recovered), 'process')} were read from rings")
    if used := sum(row.in_effect for row in rows):
        lines.append(f"NCCL used {many(used, 'local registration')} of all that were made")
    if in_vain := sum(row.in_vain for row in rows):
        lines.append(f"NCCL cannot use {many(in_vain, 'local registration')}: they only cost time")
    # It is advice for a job that works: of one that does not, the audit says what to do.
    if (left_out := sum(row.left_out for row in rows)) and all(row.end == "ended" for row in rows):
        lines.append(
            f"{many(left_out, 'segment')} unregistered, because NCCL cannot map memory of cudaMalloc into other "
            "processes of the host: set SYMM_REGISTER_MEMORY=vmm"
        )
    expandable = [row.expandable for row in rows if row.expandable]
    if expandable:
        most = in_bytes(max(expandable), exact=True)
        lines.append(
            f"expandable segments in {many(len(expandable), 'process')}, up to {most} in one: followed, but not "
            "counted above, and never registered"
        )
    return lines


def _as_json(directory: Path, read: _Read, show_all: bool, *, paths: bool) -> dict[str, Any]:
    hidden = set[int]() if show_all else launchers(read.rows)
    return {
        "version": 1,
        "directory": str(directory),
        "processes": [
            {"file": log.path.name, "host": log.begin.get("host"), "job": log.begin.get("job"), **row.as_json()}
            for number, (log, row) in enumerate(zip(read.logs, read.rows, strict=True))
            if number not in hidden
        ],
        **({"paths": _paths_as_json(read.logs)} if paths else {}),
        "not_shown": len(hidden),
        "unreadable": read.unreadable + [log.complaint for log in read.logs if log.complaint],
    }


_COUNTED = ("segs", "freed", "comms", "ended", "aborted", "regs", "undone", "dropped", "left")
_OF_WINDOWS = ("windows", "held")
_LAST = ("failed", "warn", "log")


def _new_table(title: str, first: Sequence[str], with_windows: bool) -> Table:
    """Return a table without rows: what it is of, and then the counts."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in (*first, *_COUNTED, *(_OF_WINDOWS if with_windows else ()), *_LAST):
        is_host = column == "host"
        table.add_column(column, justify="left" if is_host else "right", overflow="fold", no_wrap=is_host)
    return table


def _numbers_of(row: Summary, with_windows: bool) -> list[int]:
    """Return the counts of a process."""
    numbers = [row.segments, row.segments_freed, row.communicators, row.destroyed, row.aborted]
    numbers += [row.local.made, row.local.undone, row.local.dropped, row.local.left]
    numbers += [row.windows.made, row.windows.left] if with_windows else []
    return [*numbers, row.failures, row.warnings]


def _cells_of(row: Summary, with_windows: bool) -> list[str]:
    """Return a row of the table of processes."""
    return ["-" if row.rank is None else str(row.rank), str(row.pid), *_sums([row], with_windows)]


_MOST_PROCESSES = 64  # that have a row each, whatever their hosts
_MOST_TROUBLED = 16


def _troubled_table(placed: Sequence[tuple[str, Summary]], with_windows: bool) -> tuple[Table, str]:
    """Return the sums of very many processes, each with its host, and those to look at; and what to say of others."""
    hosts = len({host for host, _ in placed})
    title = f"tracehook: {many(len(placed), 'process')} on {many(hosts, 'host')}"
    table = _new_table(title, ("host", "rank", "pid"), with_windows)
    everyone = [row for _, row in placed]
    table.add_row("all", "", str(len(everyone)), *_sums(everyone, with_windows), style="bold")
    some_ended = any(row.end == "ended" for row in everyone)
    troubled = sorted((each for each in placed if _is_troubled(each[1], some_ended)), key=lambda each: _place(each[1]))
    for host, row in troubled[:_MOST_TROUBLED]:
        table.add_row(*map(Text, (host_name(host), *_cells_of(row, with_windows))))
    left = len(troubled) - _MOST_TROUBLED
    return table, f"{f'and {left} more to look at; ' if left > 0 else ''}--ranks shows each process"


def _sums(rows: Sequence[Summary], with_windows: bool) -> list[str]:
    sums = [sum(column) for column in zip(*(_numbers_of(row, with_windows) for row in rows), strict=True)]
    return [*map(str, sums), _log_states(rows)]


def _log_states(rows: Sequence[Summary]) -> str:
    """Return how all of these logs ended, or how many did not, or how many events they lost."""
    if lost := sum(row.lost for row in rows):
        return f"{lost} lost"
    ends = Counter(row.end for row in rows)
    others = len(rows) - ends.pop("ended", 0)
    kind = next(iter(ends), "ended") if len(ends) < 2 else "not ended"
    return f"{others} {kind}" if 0 < others < len(rows) else kind


def _is_troubled(row: Summary, some_ended: bool) -> bool:
    """Whether it has refused calls, warnings or lost events, or its log is open where others ended."""
    return bool(row.failures or row.warnings or row.lost or (some_ended and row.end != "ended"))


def _place(row: Summary) -> tuple[object, ...]:
    """Return what processes to look at are sorted by."""
    return (not row.failures, not row.lost, row.ended, -row.warnings, row.rank or 0)


_LEGEND_OF_PATHS = (
    "size: bytes of NCCL's count on one rank, the power of two at or below; ranks: that counted such calls; calls, "
    "bytes: of all of them; captured: into a CUDA graph, counted once and not when the graph runs; path unknown: only "
    "NCCL knows. Communicators that still live have no line before the process ends"
)
_WIDEST_GROUP = 24
_COUNTED_PATHS = "communicator.paths"  # the event that counts them


class PathRow(NamedTuple):
    """A row of the table: collectives of one operation, size and path on one communicator, of all ranks together."""

    comm: str
    operation: str
    bucket: int
    path: str
    captured: bool
    ranks: int
    count: int  # type: ignore[assignment]  # not the tuple's method
    nbytes: int


def _rows_of(logs: Iterable[ProcessLog]) -> list[PathRow]:
    """Return what the logs tell of paths, by communicator, in the order of the operations and sizes."""
    sums: dict[tuple[str, str, int, str, bool], list[PathCount]] = {}
    for log in logs:
        told = [parse(event) for event in log.events if event["event"] == _COUNTED_PATHS]
        for row in counted((one for one in told if one is not None), whole_number(log.begin.get("nccl")) or 0):
            sums.setdefault((row.comm, row.operation, row.bucket, row.path, row.captured), []).append(row)
    return [
        PathRow(*kind, len(found), sum(row.count for row in found), sum(row.nbytes for row in found))
        for kind, found in sorted(sums.items())
    ]


def _paths_as_json(logs: list[ProcessLog]) -> list[dict[str, Any]]:
    """Return the rows as ``--json`` prints them."""
    groups = _groups(logs)
    return [
        {**row._asdict(), "group": groups[row.comm].label if row.comm in groups else None} for row in _rows_of(logs)
    ]


def _show_paths(logs: list[ProcessLog]) -> None:
    """Print the table."""
    rows, groups = _rows_of(logs), _groups(logs)
    table = Table(
        title="tracehook: the paths of collectives",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for column in ("communicator", "operation", "size"):
        table.add_column(column, overflow="fold")
    for column in ("path", "captured", "ranks", "calls", "bytes"):
        table.add_column(column, justify="left" if column == "path" else "right", overflow="fold")
    for row in rows:
        group = groups.get(row.comm)
        name = row.comm if group is None else printable(f"group {group.label}", _WIDEST_GROUP, instead="?")
        sizes = (in_bytes(row.bucket), row.path, "yes" if row.captured else "", str(row.ranks))
        table.add_row(name, row.operation, *sizes, str(row.count), in_bytes(row.nbytes))
    console = console_for(table)
    if not rows:
        console.print(
            "tracehook: no collectives are counted: the job made none, or its logs are older than schema 1.14"
        )
        return
    console.print(table)
    console.print()
    console.print(_LEGEND_OF_PATHS, style="dim")


def _groups(logs: Iterable[ProcessLog]) -> dict[str, NamedGroup]:
    events = (event for log in logs for event in log.events if event["event"] == NAMED)
    return {str(event.get("comm")): group_in(event) for event in events}
