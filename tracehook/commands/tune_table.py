"""The tables that ``tracehook tune`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table as Shown
from rich.text import Text

from tracehook.log.text import in_bytes
from tracehook.tuning.table import Point, Row, Table


def tables(table: Table) -> Iterator[Shown]:
    """Yield one table for each collective, type and group: sizes below each other, ways of calling side by side."""
    for kind in sorted({kind._replace(graph=False) for kind in table.rows}):
        yield _shown(table, kind)


def _shown(table: Table, kind: Row) -> Shown:
    hosts = f" on {kind.hosts} hosts" if kind.hosts > 1 else ""
    title = f"{kind.operation}, {kind.dtype}, {kind.ranks} ranks{hosts}: microseconds; * is chosen"
    shown = Shown(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("bytes", justify="right", no_wrap=True)
    ways = [kind._replace(graph=graph) for graph in (True, False) if kind._replace(graph=graph) in table.rows]
    for way in ways:
        name = "graph" if way.graph else "eager"
        for column in (f"{name}: plain", "symmetric", "plain/symmetric"):
            shown.add_column(column, justify="right", no_wrap=True)
    rows = [{point.nbytes: point for point in table.rows[way]} for way in ways]
    for nbytes in sorted(set().union(*rows)):
        cells = [cell for row in rows for cell in _cells(row.get(nbytes), table.margin)]
        shown.add_row(in_bytes(nbytes), *cells)
    return shown


def _cells(point: Point | None, margin: float) -> list[Text]:
    if point is None:
        return [Text("-")] * 3
    is_symmetric = point.prefers_symmetric(margin)
    plain = _chosen(f"{point.plain_us:.1f}", not is_symmetric)
    return [plain, _chosen(f"{point.symmetric_us:.1f}", is_symmetric), Text(f"{point.gain:.2f}")]


def _chosen(text: str, is_chosen: bool) -> Text:
    return Text(f"{text}{'*' if is_chosen else ' '}", style="bold" if is_chosen else "")
