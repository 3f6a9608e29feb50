"""Ratios of things that were measured side by side, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def describe(name: str, values: Sequence[float], unit: str, limit: float | None = None) -> str:
    """Return one line: median, the middle half, number of repetitions, and the limit that was set."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    bound = f"   limit {limit:g}" if limit is not None else ""
    return f"{name:58s} {statistics.median(values):9.3f} {unit:5s} [{low:.3f} .. {high:.3f}] n={len(values)}{bound}"
