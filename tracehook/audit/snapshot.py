"""The logs of a job in the format of ``torch.cuda.memory._dump_snapshot``, for pytorch.org/memory_viz. Needs no torch.

A device of a process becomes a device of the snapshot. Its segments come and go as the log says; what lies inside them is
not known here. Registrations are entries of the trace with actions of our own, which the viewer lists and otherwise leaves
alone. They carry the name that the viewer gives to the segment (address and version), so its search finds them together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tracehook.audit.pickling import PickleStream
from tracehook.audit.reader import LogError
from tracehook.audit.store import Progress, Store
from tracehook.audit.timeline import name_of, wall_ns

_LARGEST = 1 << 53  # of an address or size; the viewer counts in doubles
_FRAMES = 40  # lines shown below a segment
_ACTIONS = {
    "register.local": "segment_register",
    "deregister.local": "segment_deregister",
    "register.window": "segment_register_window",
    "deregister.window": "segment_deregister_window",
    "segment.adopt": "segment_adopt",
}
_FACTS = ("comm", "comm_rank", "us", "ok", "error", "effective", "ordinal", "capturing", "ranks", "registrations")


@dataclass(frozen=True)
class Device:
    """A device of a process, and its number in the snapshot."""

    number: int
    process: int
    device: int
    name: str
    file: str
    wall_ns: int  # at time 0 of the tables


@dataclass
class _Life:
    """A segment of the allocator while it lived; `version`: how often its address was freed before."""

    address: int
    size: int
    adopted: bool
    freed: bool
    frames: list[dict[str, Any]]
    registered: bool = False
    window: bool = False

    @property
    def category(self) -> str:
        return "window" if self.window else "registered" if self.registered else "unknown"


def devices(store: Store, ranks: Collection[int] = ()) -> list[Device]:
    """Return what the snapshot will show: the devices that processes used, or those of some ranks.

    Raises :class:`LogError` if there is none.
    """
    out: list[Device] = []
    for row in store.rows(
        """SELECT process.*, used.device FROM process
           JOIN (SELECT DISTINCT process, device FROM event WHERE device IS NOT NULL) AS used USING (process)
           ORDER BY process, used.device"""
    ):
        if not ranks or row["rank"] in ranks:
            name = f"{name_of(row)}, cuda:{row['device']}"
            began = 0 if row["began"] is None or row["began_ns"] is None else wall_ns(row["began"])
            wall = began - (row["began_ns"] + row["shift_ns"]) if began else 0
            out.append(Device(len(out), row["process"], row["device"], name, row["file"], wall))
    missing = set(ranks) - {rank for rank, in _ranks(store)}
    if missing:
        raise LogError(f"no log of rank {', '.join(map(str, sorted(missing)))}")
    if not out:
        raise LogError("no process in these logs used a device")
    return out
