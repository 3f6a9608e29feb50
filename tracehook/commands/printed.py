"""How commands print: tables, as wide as the terminal or COLUMNS says, and in a pipe as wide as they are; refusals."""

from __future__ import annotations

import os
from typing import NoReturn

import typer
from rich.console import Console, RenderableType

UNUSABLE = 2  # exit status

_NARROWEST = 100  # where nobody says a width
_WIDEST = 100_000


def console_for(table: RenderableType) -> Console:
    """Return the console to print `table` on, and what belongs below it."""
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    return Console(highlight=False, width=max(_NARROWEST, wanted))


def refuse(command: str, why: str) -> NoReturn:
    """Say in one line why the command cannot do it, and end with status 2."""
    typer.echo(f"tracehook {command}: {why}", err=True)
    raise typer.Exit(UNUSABLE) from None
