"""The command line: one file a command. Imported by the ``tracehook`` script only, never by a job."""

from __future__ import annotations

import errno
import platform
from typing import Annotated

import typer

from tracehook import __version__
from tracehook.commands import (
    audit,
    build_hook,
    doctor,
    export,
    jobs,
    rehearse,
    report,
    run,
    stacks,
    summary,
    timeline,
    tune,
    watch,
)
from tracehook.commands.printed import UNUSABLE

app = typer.Typer(
    name="tracehook",
    help="Follows what a PyTorch job does with NCCL, on every rank: rehearse it, log it, and find out what is wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tracehook {__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # its callback has done it
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# Options after the command are the command's own, also without `--` before it.
_PASS_ON = {"allow_extra_args": True, "allow_interspersed_args": False}
_BEFORE_ANOTHER = "[OPTIONS] -- COMMAND ..."
app.command("run", context_settings=_PASS_ON, options_metavar=_BEFORE_ANOTHER)(run.run)
app.command("rehearse", context_settings=_PASS_ON, options_metavar=_BEFORE_ANOTHER)(rehearse.rehearse)
for command in (
    *(doctor.doctor, build_hook.build_hook, tune.tune, jobs.jobs, summary.summary, watch.watch),
    *(stacks.stacks, export.export, audit.audit, report.report, timeline.timeline),
):
    app.command(command.__name__.replace("_", "-"))(command)


def main() -> None:
    """Run the command line. A package that is missing, or a full disk, is one line, and exit status 2."""
    try:
        app()
    except ImportError as problem:
        if problem.name == "torch":
            text = "this command needs torch, and torch is not installed; expected torch 2.11 or later beside tracehook"
        elif problem.name == "tracehook._core":
            text = str(problem)
        else:
            raise
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        text = f"cannot write the output: {problem.strerror}"
    typer.echo(f"tracehook: {text}", err=True)
    raise SystemExit(UNUSABLE)
