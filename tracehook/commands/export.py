"""``tracehook export``: logs and rings to Parquet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracehook.commands.logs_options import LogDirectory, plain, readable
from tracehook.log.lines import LogError

if TYPE_CHECKING:
    from tracehook.export.parquet import Exported


def export(
    directory: LogDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where the Parquet files go; may have some already.")],
    here: Annotated[
        bool, typer.Option("--here", help="Only logs of this host: for a step on each host of a job.")
    ] = False,
    over: Annotated[
        bool, typer.Option("--over", help="The job has ended: add what killed processes of other hosts left in rings.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Export again after this time, until the job's processes have ended."
        ),
    ] = None,
) -> None:
    """Add to the Parquet files in OUT the events of the logs in DIR that OUT lacks.

    OUT/event holds the events of each job; OUT/process holds a row for each process. You can run the command while the
    job runs. If somebody kills it, OUT has no event twice and no half file. Exit status 2 if DIR holds no log.
    """
    with readable("export"):
        from tracehook.export.parquet import export as add

        waits = False
        while True:
            try:
                added = add(directory, out, here, over)
            except LogError as problem:  # perhaps the job has not begun
                if every is None:
                    raise
                if not waits:
                    typer.echo(f"tracehook export: waits for logs: {plain(str(problem))}", err=True)
                waits = True
            else:
                _tell(added)
                if every is None or (added.found and not added.growing):
                    return
            time.sleep(every)


def _tell(added: Exported) -> None:
    typer.echo(f"new events: {added.events:,}, of logs: {added.logs:,}")
    if added.foreign:
        why = "no events, left out; tracehook audit names them"
        typer.echo(f"tracehook export: lines that are {why}: {added.foreign:,}", err=True)
    if added.elsewhere:
        what = f"logs of other hosts without an end: {added.elsewhere:,}"
        why = "when the job has ended, add --over for what they left in their rings"
        typer.echo(f"tracehook export: {what}; {why}", err=True)
    for problem in added.unreadable:
        typer.echo(f"tracehook export: {plain(problem)}", err=True)
