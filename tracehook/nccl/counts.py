"""Which path every collective took: what the gate counted (cpp/events/tally.h), put to the table of NCCL's rules.

A call that was captured into a CUDA graph counts once, at its capture: NCCL chooses the path then, and the graph runs
without a call. Calls that NCCL refused, and groups that it did, are not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from tracehook.log.calls import BYTES, TYPES
from tracehook.log.tallies import OTHER, Surroundings, Tallies, Tally, chosen, tally_of
from tracehook.nccl.paths import DEPENDS, path_of
from tracehook.nccl.rules import RULES

UNKNOWN = "unknown"
_DTYPES = {"float8_e4m3": "float8_e4m3fn"}  # what torch calls them
_ITEMSIZE = dict(zip(TYPES, BYTES, strict=True))
_REDUCTIONS = {"prod": "product"}


class PathCount(NamedTuple):
    """How many collectives of one operation and size went one path, on one communicator of this process."""

    comm: str  # 16 hex digits, alike on all ranks; zeros: the oldest of very many that have ended, together
    comm_id: int  # 0: the same
    comm_rank: int  # -1: not known
    operation: str  # such as all_reduce
    bucket: int  # bytes of NCCL's count on one rank: the power of two at or below; 0: empty
    path: str  # symmetric, copy_engine, plain; unknown: only NCCL knows
    captured: bool  # into a CUDA graph: counted once, not when the graph runs
    count: int  # type: ignore[assignment]  # not the tuple's method
    nbytes: int  # of all of them


def path_counts() -> list[PathCount]:
    """Return what all communicators of this process did since it started, those that have ended too."""
    from tracehook import _core

    try:
        rows = _core.tallied()
    except RuntimeError:  # tracehook is not started here
        return []
    settings = chosen(os.environ)
    found = [
        Tallies(f"{key:016x}", comm_id, rank, size, Surroundings.unpacked(around), settings, (tally_of(*entry),))
        for key, comm_id, rank, size, around, *entry in rows
    ]
    return counted(found, _core.nccl_version())


def counted(tallies: Iterable[Tallies], version: int) -> list[PathCount]:
    """Return the counts by path, ordered, for this version of NCCL (as 22809; 0: not known)."""
    sums: dict[tuple[str, int, int, str, int, str, bool], tuple[int, int]] = {}
    for one in tallies:
        for tally in one.rows:
            path = path_of_tally(tally, one, version)
            kind = (one.comm, one.comm_id, one.rank, tally.operation, tally.bucket, path, tally.captured)
            count, nbytes = sums.get(kind, (0, 0))
            sums[kind] = (count + tally.count, nbytes + tally.nbytes)
    return [PathCount(*kind, *numbers) for kind, numbers in sorted(sums.items(), key=lambda item: item[0][1:])]


def path_of_tally(tally: Tally, of: Tallies, version: int) -> str:
    """Return the path of calls of one kind; ``unknown`` if those of the kind went several, or only NCCL knows."""
    if tally.operation == OTHER or not version:
        return UNKNOWN
    try:
        kinds = {_path(tally, of, version, nbytes) for nbytes in (tally.least, tally.most)}
    except ValueError:  # a later tracehook counted an operation that this one does not know
        return UNKNOWN
    return UNKNOWN if len(kinds) > 1 or DEPENDS in kinds else kinds.pop()


def _path(tally: Tally, of: Tallies, version: int, nbytes: int) -> str:
    around = of.surroundings
    is_grouped = tally.group == "alike" or (tally.group == "grouped" and RULES["alone"].holds(version))
    return path_of(
        tally.operation,
        _DTYPES.get(tally.dtype, tally.dtype),
        _REDUCTIONS.get(tally.reduction, tally.reduction),
        sends_in_window=tally.windows in ("send", "both"),
        receives_in_window=tally.windows in ("receive", "both"),
        nbytes=nbytes,
        ranks=of.size if of.size > 0 else 2,
        version=version,
        domain=around.domain or None,
        grouped=is_grouped,
        policy=around.policy,
        capability=around.capability or None,
        itemsize=_ITEMSIZE.get(tally.dtype, 1),
        settings=of.settings,
    ).kind
