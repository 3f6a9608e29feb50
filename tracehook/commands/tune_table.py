"""The tables that ``tracehook tune`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.table import Table as Shown
from rich.text import Text

from tracehook.log.text import in_bytes
from tracehook.nccl.effect import Threshold
from tracehook.tuning.table import Point, RegisteredPoint, Row, Table
from tracehook.tuning.thresholds import thresholds

_NEVER = Threshold(None, None)


def tables(table: Table) -> Iterator[Shown]:
    """Yield one table for each collective, type and group: sizes below each other, ways of calling side by side."""
    for kind in sorted({kind._replace(graph=False) for kind in table.rows}):
        yield _shown(kind, table.rows, "symmetric", lambda point, _: _cells(point, table.margin))
    limits = thresholds(table)
    for kind in sorted({kind._replace(graph=False) for kind in table.registered}):
        limit = limits.get(kind.operation, _NEVER)
        yield _shown(kind, table.registered, "registered", partial(_registered_cells, limit))


def sentence_on_registered(table: Table) -> str:
    """Say which calls run on registered memory with this table."""
    told = ", ".join(f"{call} {limit.in_words()}" for call, limit in thresholds(table).items())
    return f"Calls run on registered memory: {told}."


def _shown(
    kind: Row, table: Mapping[Row, Sequence[Any]], other: str, cells_of: Callable[[Any, bool], list[Text]]
) -> Shown:
    hosts = f" on {kind.hosts} hosts" if kind.hosts > 1 else ""
    about = ", registered" if other == "registered" else ""
    title = f"{kind.operation}, {kind.dtype}, {kind.ranks} ranks{hosts}{about}: microseconds; * is chosen"
    shown = Shown(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("bytes", justify="right", no_wrap=True)
    ways = [kind._replace(graph=graph) for graph in (True, False) if kind._replace(graph=graph) in table]
    for way in ways:
        name = "graph" if way.graph else "eager"
        for column in (f"{name}: plain", other, f"plain/{other}"):
            shown.add_column(column, justify="right", no_wrap=True)
    rows = [{point.nbytes: point for point in table[way]} for way in ways]
    for nbytes in sorted(set().union(*rows)):
        cells = [cell for way, row in zip(ways, rows, strict=True) for cell in cells_of(row.get(nbytes), way.graph)]
        shown.add_row(in_bytes(nbytes), *cells)
    return shown


def _cells(point: Point | None, margin: float) -> list[Text]:
    if point is None:
        return [Text("-")] * 3
    is_symmetric = point.prefers_symmetric(margin)
    plain = _chosen(f"{point.plain_us:.1f}", not is_symmetric)
    return [plain, _chosen(f"{point.symmetric_us:.1f}", is_symmetric), Text(f"{point.gain:.2f}")]


def _registered_cells(limit: Threshold, point: RegisteredPoint | None, graph: bool) -> list[Text]:
    if point is None:
        return [Text("-")] * 3
    least = limit.captured if graph else limit.eager
    is_registered = least is not None and point.nbytes >= least
    plain = _chosen(f"{point.plain_us:.1f}", not is_registered)
    return [plain, _chosen(f"{point.registered_us:.1f}", is_registered), Text(f"{point.gain:.2f}")]


def _chosen(text: str, is_chosen: bool) -> Text:
    return Text(f"{text}{'*' if is_chosen else ' '}", style="bold" if is_chosen else "")
