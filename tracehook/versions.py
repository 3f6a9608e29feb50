"""Which PyTorch ships which NCCL: the one table of versions. docs/compatibility.md shows it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One minor version of PyTorch: the NCCL of its CUDA wheels (22809 is 2.28.9), and its default NCCL group."""

    torch: str
    release: str  # the one that a wheel of tracehook is compiled with; others of this minor have the same classes
    nccl: int
    group: str


# Of 2.13 no CUDA wheel was at hand: its NCCL is taken to be that of 2.12.
ROWS = (
    Row("2.11", "2.11.0", 22809, "stock"),
    Row("2.12", "2.12.1", 22907, "stock"),
    Row("2.13", "2.13.0", 22907, "stock"),
    Row("2.14", "2.14.1", 23007, "stock"),
    Row("2.15", "2.15.0", 23007, "nccl2"),
)


def of_torch(version: str) -> Row:
    """Return the row for a version such as ``2.11.0+cu130``; of one that is not in the table, that of the nearest."""
    wanted = _order(version)
    return min(reversed(ROWS), key=lambda row: abs(_order(row.torch) - wanted))


def _order(version: str) -> int:
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in f"{version}.0".split(".")[:2])
    return 1000 * major + minor
