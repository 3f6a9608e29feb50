"""Text for people: what a log or a file name may contain made harmless, and numbers with their units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MOST_RANGES = 8
_LONGEST_HOST = 24


def encodable(text: str) -> str:
    """Return text that may have come from any bytes as one that UTF-8, and so JSON, can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def printable(text: str, most: int, instead: str = " ", end: str = "...") -> str:
    """Return text of a log as one line of at most `most` characters, none of which a terminal or a page obeys.

    A character that is not shown becomes `instead`. What is too long ends with `end`.
    """
    cut = text[: most + 1]
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else instead for c in cut)
    return shown if len(shown) <= most else shown[: most - len(end)] + end


def number_in(text: str) -> int | None:
    """Return the number that a text is, of up to nine digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def host_name(host: str) -> str:
    """Return the name of a host as a cell of a table."""
    return printable(host, _LONGEST_HOST, instead="?")


def natural(name: str) -> list[tuple[int, str]]:
    """Return what names are sorted by if numbers in them count as such."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def in_bytes(size: float | None, exact: bool = False) -> str:
    """Return a number of bytes with a unit.

    It has the largest unit that the number fills, and four digits. The exact form has the largest unit that loses no
    digit, for sizes that must not look equal when they differ.
    """
    if size is None:
        return "? bytes"
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        one = 1 << bits
        if abs(size) < one:
            continue
        if not exact:
            return f"{size / one:.4g} {unit}"
        if size % one == 0:
            return f"{round(size) // one} {unit}"
    return f"{round(size)} bytes"


def many(count: int, noun: str) -> str:
    """Return a count and the noun that it counts, in the plural where English has it: ``1 process``, ``0 ranks``."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """Return a noun that has this count."""
    return noun if count == 1 else f"{noun}{'es' if noun.endswith('s') else 's'}"


def ordinal(number: int) -> str:
    """Return such as ``12th``."""
    ending = "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")  # codespell:ignore
    return f"{number}{ending}"


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return whole numbers, in their order, as ranges, each with its first and its last number."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def ranks_in_words(ranks: Iterable[int], most: int | None = _MOST_RANGES, dash: str = "-") -> str:
    """Return ranks, of which there are some, as ``rank 3`` or ``ranks 0-3, 7``."""
    different = sorted(set(ranks))
    return f"{plural(len(different), 'rank')} {told_ranges(ranges_of(different), most, dash)}"


def told_ranges(ranges: Sequence[tuple[int, int]], most: int | None = _MOST_RANGES, dash: str = "-") -> str:
    """Return ranges as ``0-3, 7, 8, 10-511``; at most so many, then how many more numbers there are."""
    shown, more = ranges[:most], sum(last - first + 1 for first, last in ranges[most:]) if most else 0
    told = ", ".join(_range(first, last, dash) for first, last in shown)
    return told + (f" and {more} more" if more else "")


def _range(first: int, last: int, dash: str) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}{dash}{last}"
