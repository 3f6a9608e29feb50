"""How the report says things: what a log may contain made short and printable, numbers with units, lists of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+")
_MOST_RANGES = 8


def short(text: object, most: int = 200) -> str:
    """Return `text` on one line, without control characters, of at most `most` characters."""
    cut = str(text)[: most + 1]
    plain = _CONTROL.sub(" ", cut).encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= most else plain[: most - 1] + "\u2026"


def in_bytes(size: float | None) -> str:
    """Return a number of bytes with the largest unit that it fills."""
    if size is None:
        return "\u2013"
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 1 << bits:
            return f"{size / (1 << bits):.4g} {unit}"
    return f"{size:.0f} bytes"


def in_seconds(ns: float | None) -> str:
    """Return a time since the job began, in seconds."""
    return "\u2013" if ns is None else f"{ns / 1e9:,.6f} s"


def in_time(us: float | None) -> str:
    """Return a duration, given in microseconds, with the unit that suits it."""
    if us is None:
        return "\u2013"
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:,.3g} {unit}" if us < 1000 * size else f"{us / size:,.0f} {unit}"
    return f"{us:.3g} \u00b5s"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as ``0-3, 7, 9-511``; at most eight ranges, then how many more ranks there are."""
    ranges: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return _said(ranges)


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
    return sum(last - first + 1 for first, last in ranges), _said(ranges)


def _said(ranges: list[tuple[int, int]]) -> str:
    said = [str(first) if first == last else f"{first}\u2013{last}" for first, last in ranges[:_MOST_RANGES]]
    more = sum(last - first + 1 for first, last in ranges[_MOST_RANGES:])
    return ", ".join(said) + (f" and {more} more" if more else "")
