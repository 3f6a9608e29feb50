"""``tracehook watch``: what the processes of a running job do, from their logs."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from tracehook.audit.live import Follower
from tracehook.commands import watch_table
from tracehook.commands.logs_options import All, Job, tell
from tracehook.commands.printed import console_for
from tracehook.commands.watch_table import alert, clean, nothing, picture, sentence, told_hangs


def watch(
    directory: Annotated[Path, typer.Argument(help="The directory that SYMM_REGISTER_LOG named; may not exist yet.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the files.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Watch on when all processes have ended.")] = False,
    show_all: All = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print everything as one JSON object.")] = False,
    job: Job = None,
) -> None:
    """Show what the processes of a running job do, until all have ended or Control-C.

    Reads the job's files only. Where stdout is no terminal, prints a line each interval. Exit status 2 if the directory
    cannot be read, or, with --once, if it holds no log.
    """
    if as_json and not once:
        raise typer.BadParameter("--json is for one look; expected --once with it")
    follower = Follower(directory, job=job, show_all=show_all)
    try:
        if once:
            _show_once(follower, as_json)
        elif sys.stdout.isatty() and not Console().is_dumb_terminal:
            _show_live(follower, interval, keep)
        else:
            _print_lines(follower, interval, keep)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        typer.echo(f"tracehook watch: {clean(str(directory))}: {problem.strerror or problem}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        return


def _show_once(follower: Follower, as_json: bool) -> None:
    follower.look()
    if not follower.processes:
        typer.echo(f"tracehook watch: {nothing(follower)}", err=True)
        raise typer.Exit(2)
    if as_json:
        tell("watch", follower.left_out)
        typer.echo(json.dumps(watch_table.as_json(follower), indent=1))
        return
    console = console_for(picture(follower))
    console.print(picture(follower, console.height if console.is_terminal else None))


def _show_live(follower: Follower, interval: float, keep: bool) -> None:
    console = Console(highlight=False)
    try:
        with (
            _end_in_order(),
            Live(
                console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            ) as live,
        ):
            for _ in _looks(follower, interval, keep):
                live.update(picture(follower, console.height), refresh=True)
    finally:
        console.print(picture(follower, console.height))


def _print_lines(follower: Follower, interval: float, keep: bool) -> None:
    said, left_out = "", ""
    known: dict[str, dict[str, Any]] = {}
    waited: set[tuple[str, str]] = set()
    for _ in _looks(follower, interval, keep):
        text = sentence(follower) if follower.processes else nothing(follower)
        if text != said or follower.processes:
            print(f"{datetime.now():%H:%M:%S} {text}", flush=True)
        said = text
        if follower.left_out != left_out:
            left_out = follower.left_out
            tell("watch", left_out)
        hangs = told_hangs(follower)
        for call, line in hangs.items():
            if call not in waited:
                print(line, flush=True)
        waited = set(hangs)
        for name, process in follower.processes.items():
            if process.latest is not None and process.latest is not known.get(name):
                known[name] = process.latest
                print(alert(process), flush=True)


def _looks(follower: Follower, interval: float, keep: bool) -> Iterator[None]:
    """Look at the files, again and again. At least half of the time is slept, however many there are."""
    ended = 0
    while True:
        begin = time.monotonic()
        follower.look(interval / 2)
        yield
        # Twice: between two processes of a job there may be a moment without any.
        ended = ended + 1 if follower.all_ended and not follower.behind else 0
        if ended == 2 and not keep:
            return
        took = time.monotonic() - begin
        time.sleep(max(interval - took, took))


@contextmanager
def _end_in_order() -> Iterator[None]:
    """Leave a terminal that can be used also when told to end by a signal."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
