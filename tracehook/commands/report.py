"""``tracehook report``: the logs of a job as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.logs_options import Job, LogDirectory, Since, readable, selection, tell


def report(
    directory: LogDirectory,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    job: Job = None,
    since: Since = None,
) -> None:
    """Write one HTML page from the logs of a job.

    It has findings, memory over time, cost and pools. The page needs no network and no other file.
    Exit status 2 if it cannot use the directory or cannot write the page.
    """
    with readable("report"):
        from tracehook.audit.store import Store
        from tracehook.views.output import replacing
        from tracehook.views.report import make_page

        with Store(directory, selection(job, since)) as store, replacing(output) as file:
            size = file.write(make_page(store).encode())
            left_out = store.left_out
    tell("report", left_out)
    typer.echo(f"{output}: {size / 1e6:.1f} MB")
