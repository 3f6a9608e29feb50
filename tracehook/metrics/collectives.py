"""Collectives by the path that NCCL takes, and by communicator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tracehook.nccl.counts import PathCount

Bin = tuple[str, str, str, str]  # operation, bucket, path, captured


def by_path(counts: Iterable[PathCount]) -> dict[Bin, tuple[int, int]]:
    """Return number and bytes of all communicators together."""
    sums: dict[Bin, list[int]] = defaultdict(lambda: [0, 0])
    for row in counts:
        one = sums[row.operation, str(row.bucket), row.path, "true" if row.captured else "false"]
        one[0] += row.count
        one[1] += row.nbytes
    return {key: (count, nbytes) for key, (count, nbytes) in sums.items()}


def by_communicator(counts: Iterable[PathCount]) -> dict[str, int]:
    """Return the number of collectives by the key of their communicator."""
    sums = Counter[str]()
    for row in counts:
        sums[row.comm] += row.count
    return dict(sums)
