"""How tables are printed: as wide as the terminal or COLUMNS says, and elsewhere, as in a pipe, as wide as they are."""

from __future__ import annotations

import os

from rich.console import Console, RenderableType

_NARROWEST = 100  # where nobody says a width
_WIDEST = 100_000


def console_for(table: RenderableType) -> Console:
    """Return the console to print `table` on, and what belongs below it."""
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    return Console(highlight=False, width=max(_NARROWEST, wanted))
