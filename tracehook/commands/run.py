"""``tracehook run``: set the variables and become the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tracehook.commands.started import cannot_run, command_of, log_of
from tracehook.hook import job


def run(
    context: typer.Context,
    log: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for one log per process (SYMM_REGISTER_LOG).")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare segments with the allocator's snapshot (SYMM_REGISTER_CHECK).")
    ] = False,
) -> None:
    """Run a command with the hook on.

    Such as: tracehook run -- torchrun train.py. It does the same as SYMM_REGISTER_HOOK=1 before the command. The
    command takes the place of this process, so signals and the exit status are its own. Exit status 2 if it cannot
    use the directory of --log.
    """
    command = command_of(context)
    os.environ["SYMM_REGISTER_HOOK"] = "1"
    if log is not None:
        log_of("run", log)
        os.environ["SYMM_REGISTER_LOG"] = str(log.absolute())
    if os.environ.get("SYMM_REGISTER_LOG"):
        job.begin()
    if check:
        os.environ["SYMM_REGISTER_CHECK"] = "1"
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        cannot_run("run", command[0], problem)
