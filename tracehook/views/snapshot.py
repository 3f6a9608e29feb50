"""The logs of a job in the format of ``torch.cuda.memory._dump_snapshot``, for pytorch.org/memory_viz. Needs no torch.

A device of a process becomes a device of the snapshot. Its segments come and go as the log says; what lies inside them
is not known here. Registrations are entries of the trace with actions of our own, which the viewer lists and otherwise
leaves alone. They have the name that the viewer gives to their segment (address and version), so that its search finds
them together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from tracehook.audit.store import Store, quiet
from tracehook.audit.texts import Progress
from tracehook.log.lines import LogError
from tracehook.views.history import History
from tracehook.views.naming import name_of, wall_at_zero
from tracehook.views.pickling import PickleStream, Pieces

# Only these are asked for: all that History takes an interest in, and says something about.
_EVENTS = """SELECT event.* FROM event WHERE process = ? AND device = ? AND seq IS NOT NULL AND (
    event IN ('segment.alloc', 'segment.adopt', 'segment.free', 'range.map', 'range.unmap', 'pool.grow', 'pool.shrink')
    OR event LIKE 'register.%' OR event LIKE 'deregister.%' OR event LIKE 'communicator.%') ORDER BY seq"""


@dataclass(frozen=True)
class Device:
    """A device of a process, as the snapshot has it. `wall_ns`: the time since 1970 at time 0 of the tables."""

    process: int
    device: int
    name: str
    file: str
    wall_ns: int


def devices(store: Store, ranks: Collection[int] = ()) -> list[Device]:
    """Return what a snapshot shows, in its order: the devices that processes used, or only those of some ranks.

    Raises :class:`LogError` if there is none, or if one of `ranks` left no log.
    """
    missing = set(ranks) - {row["rank"] for row in store.rows("SELECT rank FROM process")}
    if missing:
        raise LogError(f"{store.directory.path}: no log of rank {', '.join(map(str, sorted(missing)))}")
    rows = store.rows(
        """SELECT process.*, used.device FROM process
           JOIN (SELECT DISTINCT process, device FROM event WHERE device IS NOT NULL) AS used USING (process)
           ORDER BY process, used.device"""
    )
    out = [_device(row) for row in rows if not ranks or row["rank"] in ranks]
    if not out:
        raise LogError(f"{store.directory.path}: no process that used a device")
    return out


def _device(row: dict[str, Any]) -> Device:
    name = f"{name_of(row)}, cuda:{row['device']}"
    return Device(row["process"], row["device"], name, row["file"], max(0, wall_at_zero(row) or 0))


def write(store: Store, shown: Sequence[Device], file: BinaryIO, progress: Progress = quiet) -> int:
    """Write the snapshot of these devices to `file`; return how many entries its traces have."""
    entries = 0
    pickle = PickleStream(file)
    with tempfile.TemporaryFile(prefix="tracehook-snapshot-") as aside:
        segments = Pieces(aside)
        with pickle.item("device_traces"), pickle.list():
            for number, device in enumerate(shown):
                progress("writing devices", number / len(shown))
                history = History(device.name, device.file, device.wall_ns)
                for event in store.rows(_EVENTS, (device.process, device.device)):
                    history.add(event)
                with pickle.appended(), pickle.list():
                    pickle.extend(history.entries)
                entries += len(history.entries)
                segments.extend(history.segments(number))
        with pickle.item("segments"), pickle.list():
            pickle.copy(aside)
    for key, value in (
        ("allocator_settings", {}),
        ("external_annotations", []),
        ("tracehook", {"devices": [device.name for device in shown]}),
    ):
        with pickle.item(key):
            pickle.value(value)
    pickle.end()
    return entries
