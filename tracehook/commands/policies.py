"""``tracehook policies``: which pool policies are installed, and which are asked, in which order."""

from __future__ import annotations

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracehook import settings
from tracehook.policies.installed import PolicyEntry, available, find


def policies() -> None:
    """Show the installed pool policies, and which of them SYMM_REGISTER_POLICY chooses, in which order.

    Exit status 1 if a chosen one is missing or cannot be loaded, else 0.
    """
    values, complaints = settings.from_environment()
    for line in complaints:
        typer.echo(f"tracehook policies: {line}", err=True)
    chosen = find(values.policy)
    others = [row for row in available() if row.name not in values.policy]
    how = " (default)" if values.policy == settings.Settings().policy else ""
    table = Table(
        title=f"SYMM_REGISTER_POLICY={','.join(values.policy)}{how}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("asked", justify="right", no_wrap=True)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("package", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("what it says of itself")
    for index, row in enumerate(chosen, start=1):
        table.add_row(str(index), *_cells(row))
    for row in others:
        table.add_row("-", *_cells(row))
    console = Console(width=max(130, Console().width))
    console.print(table)
    console.print("The first that answers decides; if none does: shared. '-': not asked.", style="dim")
    for row in (*chosen, *others):
        if row.problem:
            typer.echo(f"tracehook policies: {row.name}: {row.problem}", err=True)
    raise typer.Exit(1 if any(row.problem for row in chosen) else 0)


def _cells(row: PolicyEntry) -> list[Text]:
    state = ("BROKEN" if row.target else "NOT INSTALLED") if row.problem else row.summary or "-"
    cells = (row.name, row.package or "-", row.target or "-", state)
    # Text, because what stands in square brackets would otherwise be read as a style; one line each, the last cut off.
    return [Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells]
