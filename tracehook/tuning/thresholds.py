"""From how many bytes on a call runs on registered memory, by what a table says of it."""

from __future__ import annotations

from collections.abc import Sequence

from tracehook.nccl.effect import PAYING, Threshold
from tracehook.tuning.table import RegisteredPoint, Table


def threshold(table: Table, operation: str) -> Threshold | None:
    """Return the sizes for calls of `operation`; None if the table has no times of it.

    They are sizes for all groups and types of a process, so the largest of those that the rows say. A way of calling
    that was not measured keeps the default.
    """
    found: dict[bool, list[int | None]] = {False: [], True: []}
    for kind, points in table.registered.items():
        if kind.operation == operation:
            found[kind.graph].append(_first_of(points, table.margin))
    default = PAYING.get(operation)
    if default is None or not any(found.values()):
        return None
    eager, captured = (_largest(found[way]) if found[way] else default[way] for way in (False, True))
    return Threshold(eager, captured)


def thresholds(table: Table) -> dict[str, Threshold]:
    """Return the sizes of each call of which the table has times."""
    found = {operation: threshold(table, operation) for operation in PAYING}
    return {operation: limit for operation, limit in found.items() if limit is not None}


def _first_of(points: Sequence[RegisteredPoint], margin: float) -> int | None:
    """Return the smallest size from which on every one gains; None if there is none. `points`: by size, ascending."""
    first = None
    for point in reversed(points):
        if not point.pays(margin):
            break
        first = point.nbytes
    return first


def _largest(sizes: Sequence[int | None]) -> int | None:
    """Return None, which is never, if one of them is."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None
