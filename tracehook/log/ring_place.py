"""Where the ring of a log lies: beside it, or elsewhere if the log's file system is a network one, or copies on write.

The allocator's callback writes into the ring's memory. If a file server has to answer first, the callback waits for it.
A file system that copies on write needs new room for what is written again. If it is full, the write is a SIGBUS.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracehook.log.file_name import stem_of
from tracehook.log.folders import own_host
from tracehook.log.records import RECORD_BYTES
from tracehook.log.ring import MOST_EVENTS, RingError, read_header

_MOUNTS = Path("/proc/self/mountinfo")
_UNFIT = frozenset(
    (
        *("9p", "afs", "bcachefs", "beegfs", "btrfs", "ceph", "cifs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"),
    )
)
_LOCAL_FUSE = ("fuse.fuse-overlayfs",)  # the root of containers


def choose(log: Path) -> Path:
    """Return where to make the ring of this log."""
    beside = log.with_suffix(".ring")
    if _is_fit(log.parent):
        return beside
    for folder in (Path(tempfile.gettempdir()), Path("/dev/shm")):
        if _is_fit(folder) and os.access(folder, os.W_OK):
            return folder / f"{log.stem}.{os.urandom(8).hex()}.ring"
    return beside


def capacity(limit: int | None) -> int:
    """Return how many events the ring holds, if the log with its ring may have `limit` bytes (None: no limit)."""
    events = MOST_EVENTS
    while limit is not None and events * RECORD_BYTES > limit // 4:
        events //= 2
    return events


def beside_or_named(log: Path, begin: Mapping[str, Any]) -> Path:
    """Return where the ring of this log is: beside it, or where its first line says, if that is on this host."""
    beside = log.parent / f"{stem_of(log.name)}.ring"
    return beside if beside.exists() else named_by(begin) or beside


def named_by(begin: Mapping[str, Any]) -> Path | None:
    """Return the ring that the first line of a log names; None if it names none, or the ring is not here any more."""
    name = begin.get("ring")
    if not isinstance(name, str) or begin.get("host") != own_host():
        return None
    path = Path(name)
    try:
        # Whoever wrote the line may have named any file of this host.
        is_its = path.suffix == ".ring" and path.is_file() and read_header(path).pid == begin.get("pid")
    except (OSError, ValueError, RingError):
        return None
    return path if is_its else None


def _is_fit(folder: Path) -> bool:
    kind = _kind_of(folder)
    is_fuse = kind.startswith("fuse.") and kind not in _LOCAL_FUSE
    return kind not in _UNFIT and not is_fuse


def _kind_of(folder: Path) -> str:
    """Return the name of the file system of a folder; empty if the system does not say."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = folder.resolve()
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        # Of two on one point the later one hides the other.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), after.split(" ")[0]
    return kind
