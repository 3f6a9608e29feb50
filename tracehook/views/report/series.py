"""Bytes over time: of all places at the same moments, and their spread.

A *place* is a device as one process sees it; with one device a process it is the rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tracehook.audit.store import Store
from tracehook.views.report.phrases import file_text, short

SERIES = ("held", "registered", "missing", "window", "pool", "idle", "ms")
_MOST_CELLS = 1 << 16  # of one heat map
_MOST_ROWS = 1024
_SILENCE_NS = 500_000_000  # at the end of a process; a shorter one is not drawn


@dataclass
class Place:
    """One device of one process."""

    number: int
    rank: int | None
    name: str
    about: str
    silent: tuple[float, float] | None = None  # seconds: from its last event or call to its end


@dataclass
class Span:
    """What the pictures show: nanoseconds since the job began, from the first event to the last sign of life."""

    from_ns: int
    until_ns: int

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.until_ns - self.from_ns


def find_places(store: Store) -> list[Place]:
    """Make the tables of series.sql; return the places in the order of ranks."""
    store.rows(file_text("series.sql"))
    return [_place(row) for row in store.rows("SELECT *, left(host, 80) AS short_host FROM place ORDER BY place")]


def find_span(store: Store, moments: Iterable[int]) -> Span:
    """Return the time that the pictures show. `moments` of findings may lie after the last event, but not far."""
    row = store.rows("SELECT min(first_ns) AS first, max(gone_ns) AS last FROM place")[0]
    first, last = row["first"] or 0, row["last"] or 0
    last = max([last, *(moment for moment in moments if moment < 2 * last - first)])
    margin = max((last - first) // 50, 500_000)
    return Span(max(0, first - margin), last + margin)


def read_all(store: Store, places: list[Place], span: Span) -> dict[str, Any]:
    """Return the readings of all places as the page wants them: a row a place, and the spread over the places."""
    together = -(-len(places) // _MOST_ROWS) or 1  # places a row
    rows = -(-len(places) // together)
    bins = max(48, min(240, _MOST_CELLS // max(rows, 1)))
    store.rows(f"SET VARIABLE from_ns = {span.from_ns}; SET VARIABLE span_ns = {span.ns}; SET VARIABLE bins = {bins}")
    store.rows(file_text("readings.sql"))
    return {
        "from": span.from_ns / 1e9,
        "until": span.until_ns / 1e9,
        "bins": bins,
        "together": together,
        "rows": [_name_of(places[i * together : (i + 1) * together]) for i in range(rows)],
        "series": _rows_of(store, together, bins),
        "bands": _bands(store, bins),
    }


def _rows_of(store: Store, together: int, bins: int) -> dict[str, list[list[float | None]]]:
    """Return a row for each `together` places, with the highest of them."""
    chosen = ", ".join(f'list({_scaled(name)} ORDER BY bin) AS "{name}"' for name in SERIES)
    highest = ", ".join(f'max("{name}") AS "{name}"' for name in SERIES)
    rows = store.rows(
        f"""SELECT line, {chosen} FROM (
              SELECT place // {together} AS line, bin, {highest}
              FROM (SELECT place, bin FROM place, range({bins}) bins (bin)) LEFT JOIN reading USING (place, bin)
              GROUP BY ALL)
            GROUP BY line ORDER BY line"""
    )
    return {name: [row[name] for row in rows] for name in SERIES}


def _bands(store: Store, bins: int) -> dict[str, dict[str, list[Any]]]:
    """Return for each series at each moment the lowest, the median and the highest, and which places these are."""
    out: dict[str, dict[str, list[Any]]] = {}
    for name in SERIES:
        value = _scaled(name)
        rows = store.rows(
            f"""SELECT min({value}) AS low, median({value}) AS mid, max({value}) AS high,
                       arg_min(place, "{name}") AS lowest, arg_max(place, "{name}") AS highest
                FROM range({bins}) bins (bin) LEFT JOIN reading USING (bin) GROUP BY bin ORDER BY bin"""
        )
        out[name] = {key: [row[key] for row in rows] for key in ("low", "mid", "high", "lowest", "highest")}
    return out


def _scaled(name: str) -> str:
    return 'round("ms", 3)' if name == "ms" else f'round("{name}" / 1048576, 1)'


def _place(row: dict[str, Any]) -> Place:
    name = f"pid {row['pid']}" if row["rank"] is None else f"rank {row['rank']}"
    if row["devices"] > 1:
        name += f", device {row['device']}"
    if row["rank"] is not None and row["namesakes"] > 1:
        name += f" (pid {row['pid']})"
    quiet = row["gone_ns"] - row["last_ns"]
    silent = (row["last_ns"] / 1e9, row["gone_ns"] / 1e9) if quiet >= _SILENCE_NS else None
    return Place(row["place"], row["rank"], name, f"{short(row['short_host'], 40)}, device {row['device']}", silent)


def _name_of(places: list[Place]) -> str:
    return places[0].name if len(places) == 1 else f"{places[0].name} to {places[-1].name}"
