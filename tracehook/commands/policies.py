"""``tracehook policies``: which pool policies are installed, and which are asked, in which order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tracehook import settings
from tracehook.commands.printed import console_for
from tracehook.policies.installed import PolicyEntry, available, find


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show the installed pool policies, and in which order tracehook asks those of SYMM_REGISTER_POLICY.

    Exit status 1 if a chosen policy is missing, or the command cannot load it.
    """
    values, complaints = settings.from_environment()
    for line in complaints:
        typer.echo(f"tracehook policies: {line}", err=True)
    chosen = find(values.policy)
    others = [row for row in available() if row.name not in values.policy]
    if as_json:
        asked = [_as_json(row, number) for number, row in enumerate(chosen, start=1)]
        told = {"version": 1, "policies": [*asked, *(_as_json(row, None) for row in others)]}
        typer.echo(json.dumps(told, indent=1))
    else:
        _show(values.policy, chosen, others)
    for row in (*chosen, *others):
        if row.problem:
            typer.echo(f"tracehook policies: {row.name}: {row.problem}", err=True)
    raise typer.Exit(1 if any(row.problem for row in chosen) else 0)


def _show(names: Sequence[str], chosen: Sequence[PolicyEntry], others: Sequence[PolicyEntry]) -> None:
    how = " (default)" if names == settings.Settings().policy else ""
    table = Table(
        title=f"SYMM_REGISTER_POLICY={','.join(names)}{how}",
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
    console = console_for(table)
    console.print(table)
    console.print("The first that answers decides; if none does: shared. '-': not asked.", style="dim")


def _as_json(row: PolicyEntry, asked: int | None) -> dict[str, str | int | None]:
    told = {name: getattr(row, name) for name in ("name", "package", "target", "summary", "problem")}
    return {"asked": asked, **told}


def _cells(row: PolicyEntry) -> list[Text]:
    state = ("BROKEN" if row.target else "NOT INSTALLED") if row.problem else row.summary or "-"
    cells = (row.name, row.package or "-", row.target or "-", state)
    # Text, because what stands in square brackets would otherwise be read as a style; one line each, the last cut off.
    return [Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells]
