"""``tracehook summary --paths``: which path NCCL took for the collectives of a job, from its logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from tracehook.audit.group import NAMED, NamedGroup, group_in
from tracehook.commands.printed import console_for
from tracehook.log.lines import whole_number
from tracehook.log.reader import ProcessLog
from tracehook.log.tallies import parse
from tracehook.log.text import in_bytes, printable
from tracehook.nccl.counts import PathCount, counted

_LEGEND = (
    "size: bytes of NCCL's count on one rank, the power of two at or below; ranks: that counted such calls; calls, "
    "bytes: of all of them; captured: into a CUDA graph, counted once and not when the graph runs; path unknown: only "
    "NCCL knows. Communicators that still live have no line before the process ends"
)
_WIDEST_GROUP = 24
COUNTED = "communicator.paths"  # the event that counts them


class PathRow(NamedTuple):
    """A row of the table: collectives of one operation, size and path on one communicator, of all ranks together."""

    comm: str
    operation: str
    bucket: int
    path: str
    captured: bool
    ranks: int
    count: int  # type: ignore[assignment]  # not the tuple's method
    nbytes: int


def rows_of(logs: Iterable[ProcessLog]) -> list[PathRow]:
    """Return what the logs tell of paths, by communicator, in the order of the operations and sizes."""
    sums: dict[tuple[str, str, int, str, bool], list[PathCount]] = {}
    for log in logs:
        told = [parse(event) for event in log.events if event["event"] == COUNTED]
        for row in counted((one for one in told if one is not None), whole_number(log.begin.get("nccl")) or 0):
            sums.setdefault((row.comm, row.operation, row.bucket, row.path, row.captured), []).append(row)
    return [
        PathRow(*kind, len(found), sum(row.count for row in found), sum(row.nbytes for row in found))
        for kind, found in sorted(sums.items())
    ]


def as_json(logs: list[ProcessLog]) -> list[dict[str, Any]]:
    """Return the rows as ``--json`` prints them."""
    groups = _groups(logs)
    return [{**row._asdict(), "group": groups[row.comm].label if row.comm in groups else None} for row in rows_of(logs)]


def show(logs: list[ProcessLog]) -> None:
    """Print the table."""
    rows, groups = rows_of(logs), _groups(logs)
    table = Table(
        title="tracehook: the paths of collectives",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for column in ("communicator", "operation", "size"):
        table.add_column(column, overflow="fold")
    for column in ("path", "captured", "ranks", "calls", "bytes"):
        table.add_column(column, justify="left" if column == "path" else "right", overflow="fold")
    for row in rows:
        group = groups.get(row.comm)
        name = row.comm if group is None else printable(f"group {group.label}", _WIDEST_GROUP, instead="?")
        sizes = (in_bytes(row.bucket), row.path, "yes" if row.captured else "", str(row.ranks))
        table.add_row(name, row.operation, *sizes, str(row.count), in_bytes(row.nbytes))
    console = console_for(table)
    if not rows:
        console.print(
            "tracehook: no collectives are counted: the job made none, or its logs are older than schema 1.14"
        )
        return
    console.print(table)
    console.print()
    console.print(_LEGEND, style="dim")


def _groups(logs: Iterable[ProcessLog]) -> dict[str, NamedGroup]:
    events = (event for log in logs for event in log.events if event["event"] == NAMED)
    return {str(event.get("comm")): group_in(event) for event in events}
