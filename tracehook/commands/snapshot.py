"""``tracehook snapshot``: the logs of a job as a memory snapshot for pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.logs_options import Job, LogDirectory, Since, plain, progress_bar, readable, selection, tell

_READABLE = 500_000_000  # bytes; a browser takes longer and longer with more


def snapshot(
    directory: LogDirectory,
    output: Annotated[Path, typer.Option("--output", "-o", help="The snapshot to write.")] = Path("snapshot.pickle"),
    rank: Annotated[list[int] | None, typer.Option(help="Only this global rank (repeatable).")] = None,
    job: Job = None,
    since: Since = None,
) -> None:
    """Write segments and their registrations as a snapshot for https://pytorch.org/memory_viz.

    It prints which number in the snapshot is which device.
    Exit status 2 if it cannot use the directory or cannot write the file.
    """
    with readable("snapshot"):
        from tracehook.audit.store import Store
        from tracehook.views.output import replacing
        from tracehook.views.snapshot import devices, write

        with (
            progress_bar() as progress,
            Store(directory, selection(job, since), progress) as store,
            replacing(output) as file,
        ):
            shown = devices(store, rank or ())
            entries = write(store, shown, file, progress)
            skipped, left_out = store.directory.foreign + store.directory.unreadable, store.left_out
    tell("snapshot", left_out)
    for line in skipped:
        typer.echo(f"skipped: {plain(line)}", err=True)
    for number, device in enumerate(shown):
        typer.echo(f"device {number}: {plain(device.name, 200)}")
    size = output.stat().st_size
    typer.echo(f"{output}: {entries:,} entries, {size / 1e6:.1f} MB; open it at https://pytorch.org/memory_viz")
    if size > _READABLE:
        typer.echo("tracehook snapshot: a browser may not read that much; choose ranks with --rank", err=True)
