"""``tracehook summary``: a table of what each process of a job did, from its logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from tracehook.audit.group import groups_of
from tracehook.audit.selection import NEWEST, Selection, select
from tracehook.audit.summary import Summary, launchers, summarise
from tracehook.commands import summary_paths
from tracehook.commands.logs_options import All, Job, LogDirectory, Since, plain, readable, selection, tell
from tracehook.commands.printed import console_for
from tracehook.log.directory import Directory
from tracehook.log.file import LogFile
from tracehook.log.reader import ProcessLog, read_directory
from tracehook.log.text import in_bytes, printable

_COLUMNS = ("rank", "pid", "segs", "freed", "comms", "ended", "aborted", "regs", "undone", "dropped", "left")
_OF_WINDOWS = ("windows", "left")
_LAST = ("failed", "warn", "log")
_MOST_GROUPS = 12  # that are named
_LEGEND = (
    "ended, aborted: of the comms; regs: registrations; dropped: those that went with an aborted comm; left: those "
    "that were never undone; failed: calls that NCCL refused; open: still running, killed, ended without Python's "
    "exit, or the log could not be written"
)


@dataclass(frozen=True)
class _Read:
    """What was read of a directory: the logs of one job, each with its counts."""

    logs: list[ProcessLog]
    rows: list[Summary]
    unreadable: list[str]
    left_out: str


def summary(
    directory: LogDirectory,
    show_all: All = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    paths: Annotated[
        bool, typer.Option("--paths", help="Count collectives instead, by the path that NCCL took for them.")
    ] = False,
    job: Job = None,
    since: Since = None,
) -> None:
    """Count segments, communicators and registrations of each process, from the logs of a job.

    Exit status 2 if the directory holds no log.
    """
    with readable("summary"):
        read = _read(directory, selection(job, since))
    tell("summary", read.left_out)
    if as_json:
        typer.echo(json.dumps(_as_json(directory, read, show_all, paths=paths), indent=1))
    elif paths:
        summary_paths.show(read.logs)
        _complain(read)
    else:
        _show(read, show_all)


def show(directory: Path, since: float) -> None:
    """Print the table of a rehearsal: of the logs of `directory` written at or after `since` (as time.time()).

    Files that cannot be read, or not all of them, get a line each. Raises :class:`LogError` if there is no log.
    """
    read = _read(directory, NEWEST, since)
    tell("rehearse", read.left_out)
    _show(read, show_all=False)


def _read(directory: Path, wanted: Selection, since: float = 0.0) -> _Read:
    unreadable: list[str] = []
    left_out: list[str] = []

    def chosen(found: Directory) -> list[LogFile]:
        selected = select(found, wanted)
        left_out.append(selected.left_out)
        return selected.logs

    logs = read_directory(directory, since, unreadable, chosen)
    return _Read(logs, [summarise(log) for log in logs], unreadable, "".join(left_out))


def _show(read: _Read, show_all: bool) -> None:
    hidden = set[int]() if show_all else launchers(read.rows)
    rows = [row for number, row in enumerate(read.rows) if number not in hidden]
    table = Table(
        title=f"tracehook: {_processes(len(rows))}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    with_windows = any(row.windows.made for row in rows)
    for column in (*_COLUMNS, *(_OF_WINDOWS if with_windows else ()), *_LAST):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row, with_windows))
    console = console_for(table)
    console.print(table)
    console.print()
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
        what = f"{_processes(hidden)} with neither rank nor device"
        lines.append(f"the table leaves out {what}, such as launchers; --all shows them")
    recovered = [row.recovered for row in rows if row.recovered]
    if recovered:
        lines.append(f"{sum(recovered)} events of {_processes(len(recovered))} were read from rings")
    expandable = [row.expandable for row in rows if row.expandable]
    if expandable:
        most = in_bytes(max(expandable), exact=True)
        lines.append(
            f"expandable segments in {_processes(len(expandable))}, up to {most} in one: followed, but not counted "
            "above, and never registered"
        )
    return lines


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _cells(row: Summary, with_windows: bool) -> list[str]:
    numbers = [row.segments, row.segments_freed, row.communicators, row.destroyed, row.aborted]
    numbers += [row.local.made, row.local.undone, row.local.dropped, row.local.left]
    numbers += [row.windows.made, row.windows.left] if with_windows else []
    rank = "-" if row.rank is None else str(row.rank)
    return [rank, str(row.pid), *map(str, numbers), str(row.failures), str(row.warnings), _log_state(row)]


def _log_state(row: Summary) -> str:
    if row.lost:
        return f"{row.lost} lost"
    return "ended" if row.ended else "open"


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
        **({"paths": summary_paths.as_json(read.logs)} if paths else {}),
        "not_shown": len(hidden),
        "unreadable": read.unreadable + [log.complaint for log in read.logs if log.complaint],
    }
