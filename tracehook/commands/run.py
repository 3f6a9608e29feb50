"""``tracehook run``: set the variables and become the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tracehook.hook import job, log_begin
from tracehook.log.folders import of_this_host


def run(
    context: typer.Context,
    log: Annotated[Path | None, typer.Option(help="Directory for one log per process (SYMM_REGISTER_LOG).")] = None,
    check: Annotated[
        bool, typer.Option(help="Compare segments with the allocator's snapshot (SYMM_REGISTER_CHECK).")
    ] = False,
) -> None:
    """Run a command with the hook on: tracehook run -- torchrun train.py.

    It does the same as SYMM_REGISTER_HOOK=1 before the command. The command
    takes the place of this process, so signals and the exit status are its own.
    Exit status 2 if it cannot use the directory of --log.
    """
    command = context.args
    if not command:
        raise typer.BadParameter("no command; expected: tracehook run [OPTIONS] -- COMMAND ...")
    os.environ["SYMM_REGISTER_HOOK"] = "1"
    if log is not None:
        unusable = log_begin.why_unusable(of_this_host(log))
        if unusable:
            typer.echo(f"tracehook run: --log {unusable}; nothing was started", err=True)
            raise typer.Exit(2)
        os.environ["SYMM_REGISTER_LOG"] = str(log.absolute())
    if os.environ.get("SYMM_REGISTER_LOG"):
        job.begin()
    if check:
        os.environ["SYMM_REGISTER_CHECK"] = "1"
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        typer.echo(f"tracehook run: cannot run {command[0]!r}: {problem.strerror}", err=True)
        raise typer.Exit(127) from None
