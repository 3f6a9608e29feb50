"""Segments as lifetimes: who held each of them when. Only for a bounded number of places, and of segments of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracehook.audit.finding import Finding
from tracehook.audit.store import Store
from tracehook.log.text import in_bytes
from tracehook.views.report.series import Place, Span, sql

_MOST_PLACES = 24
_MOST_CULPRITS = 2  # of one finding
_MOST_BARS = 120  # of one place and kind
_MOST_SPANS = 1200
_MOST_NAMES = 4  # of communicators, in a legend
_PIXELS = 20_000  # a span of less than one of so many parts of the job is not drawn


def choose_places(places: Sequence[Place], findings: Iterable[Finding], far: Iterable[int] = ()) -> list[Place]:
    """Return the places to show in detail: those that findings name, in their order; `far` ones; the lowest ranks."""
    by_rank: dict[int, list[int]] = {}
    for place in places:
        if place.rank is not None:
            by_rank.setdefault(place.rank, []).append(place.number)
    chosen: dict[int, None] = {}  # in the order in which they were chosen
    for finding in sorted(findings, key=lambda finding: finding.severity != "error"):
        for rank in finding.ranks[:_MOST_CULPRITS]:
            chosen |= dict.fromkeys(by_rank.get(rank, ()))
        if len(chosen) >= _MOST_PLACES:
            break
    numbers = [*chosen, *far, *range(len(places))]
    return [places[number] for number in sorted(list(dict.fromkeys(numbers))[:_MOST_PLACES])]


def read_lifetimes(
    store: Store, places: Iterable[Place], span: Span, names: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    """Return for each place the bars of its segments (`local`) and of the segments of our pools (`window`)."""
    shortest = max(10_000, span.ns // _PIXELS)
    store.rows(
        f"SET VARIABLE most_bars = {_MOST_BARS}; SET VARIABLE most_spans = {_MOST_SPANS}; "
        f"SET VARIABLE shortest_ns = {shortest}"
    )
    return {place.number: _of_place(store, place, names) for place in places}


def _of_place(store: Store, place: Place, names: Mapping[str, str]) -> dict[str, Any]:
    store.rows(f"SET VARIABLE place = {place.number}")
    store.rows(sql("lifetimes.sql"))
    return {kind: _of_kind(store, kind, names) for kind in ("local", "window")}


def _of_kind(store: Store, kind: str, names: Mapping[str, str]) -> dict[str, Any]:
    bars = store.rows("SELECT * FROM bar WHERE kind = ? ORDER BY born_ns, memory", [kind])
    spans = store.rows("SELECT * FROM span WHERE kind = ?", [kind])
    line = {bar["memory"]: index for index, bar in enumerate(bars)}
    states: dict[tuple[str, str], list[list[float]]] = {}
    for span in spans:
        state = (span["state"], _said(span["held_by"] or [], names))
        begin, end = round(span["from_ns"] / 1e9, 6), round(span["until_ns"] / 1e9, 6)
        states.setdefault(state, []).append([line[span["memory"]], begin, end])
    ordered = sorted(states.items(), key=lambda item: -sum(end - begin for _, begin, end in item[1]))
    return {
        "names": [_name(bar) for bar in bars],
        "about": [_about(bar) for bar in bars],
        "states": [[state, held_by, spans] for (state, held_by), spans in ordered],
        "left_out": bars[0]["bars"] - len(bars) if bars else 0,
        "cut": len(spans) >= _MOST_SPANS,
    }


def _said(comms: Sequence[str], names: Mapping[str, str]) -> str:
    said = sorted((names.get(comm, "c?") for comm in comms), key=lambda name: (len(name), name))
    more = f" + {len(said) - _MOST_NAMES} more" if len(said) > _MOST_NAMES else ""
    return " + ".join(said[:_MOST_NAMES]) + more


def _name(bar: dict[str, Any]) -> str:
    pool = f"pool {bar['pool']}, " if bar["pool"] is not None else ""
    return f"{pool}{bar['memory']}: {in_bytes(bar['size'])}"


def _about(bar: dict[str, Any]) -> str:
    return f"at {bar['addr']}, " + ("freed" if bar["freed"] else "not freed in the log")
