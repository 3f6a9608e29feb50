"""What `run` and `rehearse` share: the command that they start, and the directory of its logs."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from tracehook.commands.printed import refuse
from tracehook.hook import log_begin
from tracehook.log.folders import of_this_host

CANNOT_RUN = 127  # exit status


def command_of(context: typer.Context) -> list[str]:
    """Return the command that stands after the options."""
    if not context.args:
        raise typer.BadParameter(f"no command; expected: {context.command_path} [OPTIONS] -- COMMAND ...")
    return context.args


def log_of(command: str, log: Path | None) -> Path | None:
    """Return the directory of --log as this host has it, if there can be logs in it."""
    if log is None:
        return None
    log = of_this_host(log)
    unusable = log_begin.why_unusable(log)
    if unusable:
        refuse(command, f"--log {unusable}; nothing was started")
    return log


def cannot_run(command: str, name: str, problem: OSError) -> NoReturn:
    """Say in one line why the command does not start, as a shell does."""
    is_script = name.endswith(".py") and Path(name).is_file()
    advice = f"; to run a Python file: tracehook {command} -- python {name}" if is_script else ""
    typer.echo(f"tracehook {command}: cannot run {name!r}: {problem.strerror}{advice}", err=True)
    raise typer.Exit(CANNOT_RUN) from None
