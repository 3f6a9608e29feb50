"""``tracehook summary``: a table of what each process of a job did, from its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tracehook.audit.group import groups_of
from tracehook.audit.summary import Summary, summarise
from tracehook.log.lines import LogError
from tracehook.log.reader import read_directory
from tracehook.log.text import in_bytes, printable

_COLUMNS = (
    "rank",
    "pid",
    "segments",
    "freed",
    "comms",
    "ended",
    "aborted",
    "registered",
    "undone",
    "dropped",
    "left",
)
_OF_WINDOWS = ("windows", "undone", "dropped", "left")
_LAST = ("failed", "warnings", "log")
_MOST_GROUPS = 12  # that are named
_LEGEND = (
    "ended, aborted: of the comms; dropped: registrations that went with an aborted one; left: never undone; failed: "
    "calls that NCCL refused; open: still running, killed, or ended without Python's exit"
)


def summary(
    directory: Annotated[Path, typer.Argument(help="The directory that SYMM_REGISTER_LOG named.")],
) -> None:
    """Count segments, communicators and registrations of each process, from the logs of a job.

    Exit status 2 if the directory holds no log.
    """
    try:
        show(directory)
    except LogError as problem:
        typer.echo(f"tracehook summary: {problem}", err=True)
        raise typer.Exit(2) from None


def show(directory: Path, since: float = 0.0) -> None:
    """Print the table for the logs of `directory` that were written at or after `since` (seconds, as time.time()).

    Files that cannot be read, or not all of them, get a line each. Raises :class:`LogError` if there is no log.
    """
    unreadable: list[str] = []
    logs = read_directory(directory, since, unreadable)
    rows = [summarise(log) for log in logs]
    busy = [row for row in rows if row.segments or row.expandable or row.communicators]
    title = f"tracehook: {len(busy)} processes that used CUDA"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False
    )
    with_windows = any(row.windows.made for row in busy)
    for column in (*_COLUMNS, *(_OF_WINDOWS if with_windows else ()), *_LAST):
        table.add_column(column, justify="right", no_wrap=True)
    for row in busy:
        table.add_row(*_cells(row, with_windows))
    console = Console(width=max(160 if with_windows else 130, Console().width))
    console.print(table)
    console.print(_LEGEND, style="dim")
    expandable = [row.expandable for row in busy if row.expandable]
    if expandable:
        most = in_bytes(max(expandable), exact=True)
        console.print(
            f"expandable segments in {len(expandable)} processes, up to {most} in one: followed, but not counted "
            "above, and never registered"
        )
    if groups := groups_of(logs):
        more = f" and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
        named = ", ".join(printable(str(group), 80, instead="?") for group in groups[:_MOST_GROUPS])
        console.print(f"groups: {named}{more}", highlight=False, markup=False)
    for line in unreadable:
        typer.echo(f"tracehook: not read: {line}", err=True)
    for log in logs:
        if log.complaint:
            typer.echo(f"tracehook: {log.complaint}", err=True)


def _cells(row: Summary, with_windows: bool) -> list[str]:
    numbers = [row.segments, row.segments_freed, row.communicators, row.destroyed, row.aborted]
    for kept in (row.local, row.windows) if with_windows else (row.local,):
        numbers += [kept.made, kept.undone, kept.dropped, kept.left]
    rank = "-" if row.rank is None else str(row.rank)
    return [rank, str(row.pid), *map(str, numbers), str(row.failures), str(row.warnings), _log_state(row)]


def _log_state(row: Summary) -> str:
    if row.lost:
        return f"{row.lost} events lost"
    return "clean" if row.ended else f"open, {row.recovered} from ring"
