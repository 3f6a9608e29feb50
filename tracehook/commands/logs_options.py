"""What the commands that read logs share: their options, and how they say that logs cannot be read."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracehook.commands.printed import refuse
from tracehook.log.lines import LogError
from tracehook.log.text import printable

if TYPE_CHECKING:
    from tracehook.audit.selection import Selection

LogDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory that SYMM_REGISTER_LOG named.")]
Job = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Id of the job or its beginning, if there are several (tracehook jobs DIR); default: the newest. ID#1: "
        "attempt 1 of a job that its launcher started again; default: the last attempt.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Also show launchers: processes that have no rank and use no device.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]
Since = Annotated[
    datetime | None,
    typer.Option(
        metavar="TIME",
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        help="Only processes that began at or after this time, such as 2026-11-27 or 2026-11-27T09:30:00+0100 (UTC, "
        "unless it names a zone).",
    ),
]


def selection(job: str | None, since: datetime | None, launchers: bool = True) -> Selection:
    """Return what --job and --since select, with or without launchers."""
    from tracehook.audit.selection import Selection

    if since is not None and since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    return Selection(job, since, launchers)


def tell(command: str, left_out: str) -> None:
    """Say in one line which jobs of the directory are not looked at, if there are any."""
    if left_out:
        typer.echo(f"tracehook {command}: {plain(left_out)}", err=True)


@contextlib.contextmanager
def readable(command: str) -> Iterator[None]:
    """Say in one line why logs cannot be read, or what is not installed, and end with status 2."""
    try:
        with _tidy_when_terminated():
            yield
    except LogError as problem:
        refuse(command, plain(str(problem)))
    except ModuleNotFoundError as problem:
        refuse(command, f"needs {problem.name}: pip install 'tracehook[audit]'")
    except OSError as problem:
        refuse(command, plain(f"{problem.filename or 'the disk'}: {problem.strerror or problem}"))


@contextlib.contextmanager
def _tidy_when_terminated() -> Iterator[None]:
    """Let SIGTERM end the command as ^C does, so that what lies in temporary directories goes."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def plain(text: str, most: int = 2000) -> str:
    """Return text of a log as a line for a terminal."""
    return printable(text, most)
