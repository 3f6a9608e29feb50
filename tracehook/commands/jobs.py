"""``tracehook jobs``: which jobs a directory has the logs of."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import typer

from tracehook.commands.logs_options import AsJson, LogDirectory, Since, plain, readable, selection
from tracehook.log.jobs import told_time


def jobs(directory: LogDirectory, since: Since = None, as_json: AsJson = False) -> None:
    """List the jobs whose logs are in a directory.

    The newest is the last. Each has its program, time and ranks. Exit status 2 if the directory holds no log.
    """
    with readable("jobs"):
        from tracehook.audit.selection import jobs_in
        from tracehook.log.directory import find_logs

        with tempfile.TemporaryDirectory(prefix="tracehook-jobs-") as scratch:
            found = jobs_in(find_logs(directory, Path(scratch)), selection(None, since).since)[::-1]
            told = [job.as_json() for job in found]
    if as_json:
        typer.echo(json.dumps({"version": 1, "directory": str(directory), "jobs": told}, indent=1))
        return
    width = max((len(plain(job.id, 100)) for job in found), default=0)
    for job in found:
        about = f"{plain(job.program, 60)}, {job.ranks}"
        typer.echo(f"{plain(job.id, 100):{width}}  {told_time(job.began)}  {about}")
    if not found:
        typer.echo(f"tracehook jobs: {plain(str(directory))}: no process in it has a rank or used a device", err=True)
