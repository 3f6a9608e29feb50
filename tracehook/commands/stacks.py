"""``tracehook stacks``: where each rank of a running job is in its program, on this host."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import typer

from tracehook.commands.logs_options import Job, LogDirectory, Since, plain, readable, selection, tell
from tracehook.log.file_name import stacks_of

LEFT = 1  # exit status: a process did not answer, or none runs


def stacks(directory: LogDirectory, job: Job = None, since: Since = None) -> None:
    """Print where each rank of a running job is in its program.

    It prints the innermost line of each process of this host. The stacks of all threads of these processes lie
    beside their logs then, and the audit quotes them. It needs no debugger, and disturbs no process. Exit status 1
    if a process did not answer, or none runs on this host. Exit status 2 if the directory holds no log.
    """
    with readable("stacks"):
        from tracehook.audit.alive import still_runs
        from tracehook.audit.selection import select
        from tracehook.audit.stacks import program_line
        from tracehook.log.directory import find_logs
        from tracehook.log.folders import own_host
        from tracehook.log.stacks import PATIENCE, ask

        with tempfile.TemporaryDirectory(prefix="tracehook-stacks-") as scratch:
            selected = select(find_logs(directory, Path(scratch)), selection(job, since, launchers=False))
            tell("stacks", selected.left_out)
            here = [log for log in selected.logs if log.begin.get("host") == own_host() and still_runs(log)]
            began_ns = time.monotonic_ns()
            told = ask(here)
        for log in here:
            name = f"rank {log.rank}, pid {log.begin.get('pid')}" if log.rank is not None else f"pid {log.begin['pid']}"
            file = stacks_of(log.path)
            if log not in told or not file.is_file():
                typer.echo(f"tracehook stacks: {name} wrote no stacks within {PATIENCE:g} s", err=True)
            elif frame := program_line(file, began_ns):
                waits = f", waits for {frame.waits_for}" if frame.waits_for else ""
                typer.echo(plain(f"{name}: {frame.file}:{frame.line} in {frame.function}{waits}"))
            else:
                typer.echo(plain(f"{name}: in no line of the program; all of its stack: {file}"))
    if not here:
        typer.echo(f"tracehook stacks: {plain(str(directory))}: no process of this job runs on this host", err=True)
    if len(told) < len(here) or not here:
        raise typer.Exit(LEFT)
