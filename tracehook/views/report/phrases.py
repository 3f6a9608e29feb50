"""How the report words things: short texts of logs, times, lists of ranks; texts that stand in files of the package."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from tracehook.log.text import printable, ranges_of, told_ranges

_DASH = "\u2013"


def file_text(name: str) -> str:
    """Return the text of a file of this package."""
    return files("tracehook.views.report").joinpath(name).read_text(encoding="utf-8")


def short(text: object, most: int = 200) -> str:
    """Return `text` as one line that a page can show, of at most `most` characters."""
    return printable(str(text), most, end="\u2026")


def in_seconds(ns: float | None) -> str:
    """Return a time since the job began, in seconds, to the millisecond."""
    return "\u2013" if ns is None else f"{ns / 1e9:,.3f} s"


def in_time(us: float | None) -> str:
    """Return a duration, given in microseconds, with the unit that suits it."""
    if us is None:
        return "\u2013"
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:,.3g} {unit}" if us < 1000 * size else f"{us / size:,.0f} {unit}"
    return f"{us:.3g} \u00b5s"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as ranges, such as 0 to 3, 7; at most eight, then how many more ranks there are."""
    return told_ranges(ranges_of(sorted(set(ranks))), dash=_DASH)


def missing_ranks(present: Iterable[int], world_size: int) -> tuple[int, str]:
    """Return how many ranks of `world_size` are not in `present`, and which."""
    ranges: list[tuple[int, int]] = []
    expected = 0
    for rank in (*sorted(set(present)), world_size):
        if rank > expected:
            ranges.append((expected, min(rank, world_size) - 1))
        expected = max(expected, rank + 1)
        if expected >= world_size:
            break
    return sum(last - first + 1 for first, last in ranges), told_ranges(ranges, dash=_DASH)
