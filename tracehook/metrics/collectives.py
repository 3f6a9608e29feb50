"""Collectives by the path that NCCL takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from tracehook.nccl.counts import PathCount, path_counts

Bin = tuple[str, str, str, str]  # operation, bucket, path, captured


def by_path(counts: Callable[[], Iterable[PathCount]] = path_counts) -> dict[Bin, tuple[int, int]]:
    """Return number and bytes of all communicators together."""
    sums: dict[Bin, list[int]] = defaultdict(lambda: [0, 0])
    for row in counts():
        one = sums[row.operation, str(row.bucket), row.path, "true" if row.captured else "false"]
        one[0] += row.count
        one[1] += row.nbytes
    return {key: (count, nbytes) for key, (count, nbytes) in sums.items()}
