"""Which PyTorch ships which NCCL: the one table of versions. docs/compatibility.md shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class TorchVersion(NamedTuple):
    """One minor version of PyTorch: the NCCL of its CUDA wheels (22809 is 2.28.9), and its default NCCL group."""

    torch: str
    release: str  # the one that a wheel of tracehook is compiled with; others of this minor have the same classes
    nccl: int
    group: str


ROWS = (
    TorchVersion("2.11", "2.11.0", 22809, "stock"),
    TorchVersion("2.12", "2.12.1", 22907, "stock"),
    TorchVersion("2.13", "2.13.0", 22907, "stock"),
    TorchVersion("2.14", "2.14.1", 23007, "stock"),
    TorchVersion("2.15", "2.15.0", 23007, "nccl2"),
)

_FIRST_WITH_NCCL2 = "2.14"
# In a rehearsal with each version: 2.12.1 raises OutOfMemoryError, 2.13.0 gives its cache back and tries again.
_FIRST_TO_FREE_BESIDE_POOLS = "2.13"


def nccl_name(code: int | str) -> str:
    """Return what people call a version of NCCL: ``2.28.9`` for 22809; text that is no such number, as it is."""
    if not str(code).isdecimal():
        return str(code)
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def of_torch(version: str) -> TorchVersion:
    """Return the row for a version such as ``2.11.0+cu130``; of one that is not in the table, that of the nearest."""
    wanted = _order(version)
    return min(reversed(ROWS), key=lambda row: abs(_order(row.torch) - wanted))


def group_of(version: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what "nccl" is with this torch: ``stock`` or ``nccl2``, as TORCH_DIST_USE_NCCL2 may have it."""
    wanted = environment.get("TORCH_DIST_USE_NCCL2")
    if wanted == "1" and _order(version) >= _order(_FIRST_WITH_NCCL2):
        return "nccl2"
    return "stock" if wanted == "0" else of_torch(version).group


def frees_beside_pools(version: str) -> bool:
    """Whether this torch gives cached memory back to a device on which a pool is begun."""
    return _order(version) >= _order(_FIRST_TO_FREE_BESIDE_POOLS)


def _order(version: str) -> int:
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in f"{version}.0".split(".")[:2])
    return 1000 * major + minor
