"""``tracehook summary``: a table of what each process of a job did, from its logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from tracehook.audit.group import NAMED, groups_of
from tracehook.audit.selection import NEWEST, Selection, select
from tracehook.audit.summary import Summary, launchers, summarise
from tracehook.commands import summary_paths
from tracehook.commands.logs_options import All, Job, LogDirectory, Since, plain, readable, selection, tell
from tracehook.commands.printed import console_for
from tracehook.commands.summary_cells import cells_of, new_table
from tracehook.commands.summary_hosts import MOST_PROCESSES, tables
from tracehook.log.directory import Directory
from tracehook.log.file import LogFile
from tracehook.log.lines import Event
from tracehook.log.reader import ProcessLog, read_each
from tracehook.log.text import in_bytes, many, printable

_MOST_GROUPS = 12  # that are named
_LEGEND = (
    "ended, aborted: of the comms; regs: registrations; dropped: those that went with an aborted comm; left: those "
    "that were never undone; held: windows that were never undone; failed: calls that NCCL refused; open: still "
    "running, killed, ended without Python's exit, or the log could not be written"
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
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    paths: Annotated[
        bool, typer.Option("--paths", help="Count collectives instead, by the path that NCCL took for them.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="A row for each process, even if more than 64 run on several hosts.")
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
        return bool(event["event"] == summary_paths.COUNTED)

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
    if not ranks and len(rows) > MOST_PROCESSES and len({host for host, _ in placed}) > 1:
        parts = list(tables(placed, with_windows))
    else:
        table = new_table(f"tracehook: {many(len(rows), 'process')}", ("rank", "pid"), with_windows)
        for row in rows:
            table.add_row(*cells_of(row, with_windows))
        parts = [table]
    console = console_for(Group(*parts))
    for part in parts:
        console.print(part)
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
        what = f"{many(hidden, 'process')} with neither rank nor device"
        lines.append(f"the table leaves out {what}, such as launchers; --all shows them")
    recovered = [row.recovered for row in rows if row.recovered]
    if recovered:
        lines.append(f"{many(sum(recovered), 'event')} of {many(len(recovered), 'process')} were read from rings")
    if used := sum(row.in_effect for row in rows):
        lines.append(f"NCCL used {many(used, 'local registration')} of all that were made")
    if in_vain := sum(row.in_vain for row in rows):
        lines.append(f"NCCL cannot use {many(in_vain, 'local registration')}: they only cost time")
    if left_out := sum(row.left_out for row in rows):
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
        **({"paths": summary_paths.as_json(read.logs)} if paths else {}),
        "not_shown": len(hidden),
        "unreadable": read.unreadable + [log.complaint for log in read.logs if log.complaint],
    }
