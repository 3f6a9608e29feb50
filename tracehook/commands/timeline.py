"""``tracehook timeline``: the logs of a job as a trace for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.logs_options import All, Job, LogDirectory, Since, plain, readable, selection, tell


def timeline(
    directory: LogDirectory,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The trace to write.")] = Path(
        "trace.pftrace"
    ),
    show_all: All = False,
    job: Job = None,
    since: Since = None,
) -> None:
    """Draw what all ranks did over time.

    The trace has segments, communicators and registrations. https://ui.perfetto.dev shows it. Exit status 2 if it
    cannot use the directory or cannot write the file.
    """
    with readable("timeline"):
        from tracehook.audit.rules import check
        from tracehook.audit.store import Store
        from tracehook.views.output import replacing
        from tracehook.views.timeline import write

        with Store(directory, selection(job, since, show_all)) as store, replacing(output) as file:
            written = write(store, check(store), file)
            processes = len(store.directory.logs)
            skipped, left_out = store.directory.foreign + store.directory.unreadable, store.left_out
    tell("timeline", left_out)
    for line in skipped:
        typer.echo(f"skipped: {plain(line)}", err=True)
    typer.echo(
        f"{output}: {processes} processes, {written.slices:,} slices, {written.instants:,} instants, "
        f"{written.counts:,} counter values, {output.stat().st_size / 1e6:.1f} MB; open it at https://ui.perfetto.dev"
    )
