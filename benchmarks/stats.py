"""Ratios of things that were measured side by side, with their spread."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Results = defaultdict[str, list[float]]  # by name: one value from each repetition


class Line(NamedTuple):
    """How one result is shown."""

    name: str
    text: str
    unit: str
    limit: float | None = None


def describe(name: str, values: Sequence[float], unit: str, limit: float | None = None) -> str:
    """Return one line: median, the middle half, number of repetitions, and the limit that was set."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    bound = f"   limit {limit:g}" if limit is not None else ""
    return f"{name:58s} {statistics.median(values):9.3f} {unit:5s} [{low:.3f} .. {high:.3f}] n={len(values)}{bound}"


def show(lines: Sequence[Line], found: Mapping[str, Sequence[float]]) -> None:
    """Print the results that `lines` name."""
    for line in lines:
        print(describe(line.text, found[line.name], line.unit, line.limit), flush=True)


def hand_over(found: Mapping[str, Sequence[float]]) -> None:
    """Print all values as lines ``RESULT name value``, for run.py."""
    for name, values in found.items():
        for value in values:
            print(f"RESULT {name} {value}")


def best(loop: Callable[[int], float], seconds: float, parts: int = 5) -> float:
    """Return what one round of `loop` costs, in its unit: the best of several short calls that take `seconds` in all.

    `loop` runs as many rounds as it is told and returns the nanoseconds that they took. The best, because on a shared
    machine a long loop is seldom left alone.
    """
    first = max(loop(10) / 10, 1)
    count = max(10, int(seconds * 1e9 / parts / first))
    return min(loop(count) / count for _ in range(parts))
