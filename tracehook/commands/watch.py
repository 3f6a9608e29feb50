"""``tracehook watch``: what the processes of a running job do, from their logs."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from tracehook.audit.live import Follower
from tracehook.commands import watch_table
from tracehook.commands.logs_options import All, AsJson, Job, LogDirectory, tell
from tracehook.commands.printed import console_for, refuse
from tracehook.commands.watch_table import Changes, alert, clean, hosts_of, nothing, picture, sentence, told_hangs

_MOST_ALERTS = 20  # that are told of one look


def watch(
    directory: LogDirectory,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds between two looks at the files.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Watch on when all processes have ended.")] = False,
    show_all: All = False,
    as_json: AsJson = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="A row for each process, also of a job on several hosts.")
    ] = False,
    job: Job = None,
) -> None:
    """Show what the processes of a running job do.

    It ends when all have ended, or with Control-C. It reads the job's files, and waits for a directory that does not
    exist yet. If ranks wait, it asks the ranks of its host that did not come for their stacks, which disturbs no
    process. If stdout is no terminal, it prints a line at each interval. --json prints one object and ends, as --once
    does with its table. Exit status 2 if it cannot read the directory, or, with --once or --json, if the directory
    holds no log.
    """
    follower = Follower(directory, job=job, show_all=show_all)
    try:
        if once or as_json:
            _show_once(follower, as_json, not ranks)
        elif sys.stdout.isatty() and not Console().is_dumb_terminal:
            _show_live(follower, interval, keep, not ranks)
        else:
            _print_lines(follower, interval, keep)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        refuse("watch", f"{clean(str(directory))}: {problem.strerror or problem}")
    except KeyboardInterrupt:
        return


def _show_once(follower: Follower, as_json: bool, by_host: bool) -> None:
    follower.look()
    if not follower.processes:
        refuse("watch", nothing(follower))
    if as_json:
        tell("watch", follower.left_out)
        typer.echo(json.dumps(watch_table.as_json(follower), indent=1))
        return
    console = console_for(picture(follower, None, by_host))
    console.print(picture(follower, console.height if console.is_terminal else None, by_host))


def _show_live(follower: Follower, interval: float, keep: bool, by_host: bool) -> None:
    console = Console(highlight=False)
    try:
        with (
            _end_in_order(),
            Live(
                console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            ) as live,
        ):
            for _ in _looks(follower, interval, keep):
                live.update(picture(follower, console.height, by_host), refresh=True)
    finally:
        console.print(picture(follower, console.height, by_host))


def _print_lines(follower: Follower, interval: float, keep: bool) -> None:
    said, left_out = "", ""
    known: dict[str, dict[str, Any]] = {}
    waited: set[tuple[str, str]] = set()
    changes = Changes()
    for _ in _looks(follower, interval, keep):
        text = sentence(follower) if follower.processes else nothing(follower)
        if text != said or follower.processes:
            print(f"{datetime.now():%H:%M:%S} {text}", flush=True)
        said = text
        if follower.left_out != left_out:
            left_out = follower.left_out
            tell("watch", left_out)
        if follower.host_count > 1:
            _print_each(changes.lines(hosts_of(follower.processes.values(), follower.now)))
        hangs = told_hangs(follower)
        _print_each(line for call, line in hangs.items() if call not in waited)
        waited = set(hangs)
        _print_each(_new_alerts(follower, known))


def _print_each(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _new_alerts(follower: Follower, known: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the warnings that came since the last look, some of very many in words."""
    new = 0
    for name, process in follower.processes.items():
        if process.latest is not None and process.latest is not known.get(name):
            known[name] = process.latest
            new += 1
            if new <= _MOST_ALERTS:
                yield alert(process, follower.host_count > 1)
    if new > _MOST_ALERTS:
        yield f"and {new - _MOST_ALERTS} more processes with a new warning"


def _looks(follower: Follower, interval: float, keep: bool) -> Iterator[None]:
    """Look at the files, again and again. Once all was read, at least half of the time is slept, however many."""
    ended, rest = 0, 0.0
    while True:
        begin = time.monotonic()
        seconds = first_look(interval, rest) if not follower.has_caught_up else interval / 2
        follower.look(seconds)
        yield
        # Twice: between two processes of a job there may be a moment without any.
        if not follower.all_ended or follower.behind:
            ended = 0
        elif follower.is_whole:
            ended += 1
        if ended == 2 and not keep:
            return
        took = time.monotonic() - begin
        rest = took - seconds
        if follower.has_caught_up:
            time.sleep(max(interval - took, took))


def first_look(interval: float, rest: float) -> float:
    """Return how long to read until all was read once, if what is not reading took `rest` at the last look."""
    return min(max(interval, 3 * rest), 5 * interval)


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
