"""``tracehook export``: logs and rings to Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.logs_options import LogDirectory, plain, readable


def export(
    directory: LogDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the Parquet files.")],
) -> None:
    """Write the logs of jobs as Parquet files.

    They take the place of those of an earlier export. OUT/event.parquet has a row for each event, and
    OUT/process.parquet one for each process, of all jobs in DIR. If somebody kills the command, OUT has no half
    file. Exit status 2 if DIR holds no log.
    """
    with readable("export"):
        from tracehook.audit.export import export as write

        written = write(directory, out)
    typer.echo(f"events: {written.events:,}, of logs: {written.logs:,}")
    if written.foreign:
        why = "no events, left out; tracehook audit names them"
        typer.echo(f"tracehook export: lines that are {why}: {written.foreign:,}", err=True)
    for problem in written.unreadable:
        typer.echo(f"tracehook export: {plain(problem)}", err=True)
