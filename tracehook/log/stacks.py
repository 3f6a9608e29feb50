"""Asks processes of this host for the stacks of their threads, by a number in their rings.

No signal is sent: its handler may be another one by now, and without a handler it would end the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tracehook.log import clock, ring_place
from tracehook.log.file import LogFile
from tracehook.log.ring import OWN_BYTES, STACKS_ASKED, RingError, read_header

PATIENCE = 6.0  # seconds; who cannot get the GIL answers after two
_LOOK = 0.1


def ask(logs: Iterable[LogFile], patience: float = PATIENCE) -> list[LogFile]:
    """Have the processes of these logs write their stacks; return those that have, when all have or after `patience`.

    They have to live on this host.
    """
    by_ring = {ring: log for log in logs if (ring := _ring(log)) is not None}
    return [by_ring[ring] for ring in ask_rings(by_ring, patience)]


def ask_rings(rings: Iterable[Path], patience: float) -> list[Path]:
    """Do the same with processes of which the rings are known."""
    waiting = {ring: number for ring in rings if (number := _put(ring)) is not None}
    told: list[Path] = []
    deadline = clock.monotonic() + patience
    while waiting and clock.monotonic() < deadline:
        clock.sleep(_LOOK)
        done = [ring for ring, number in waiting.items() if _has_told(ring, number)]
        told += done
        for ring in done:
            del waiting[ring]
    return told


def _ring(log: LogFile) -> Path | None:
    path = ring_place.beside_or_named(log.path, log.begin)
    return path if path.is_file() else None


def _put(ring: Path) -> int | None:
    """Ask; return the number of the question, None if the process cannot be asked."""
    try:
        header = read_header(ring)
        if header.header_bytes < OWN_BYTES:  # of a version without this number
            return None
        number = (header.stacks_asked + 1) % (1 << 32)
        with ring.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), number.to_bytes(4, "little"), STACKS_ASKED)
    except (OSError, RingError):
        return None
    return number


def _has_told(ring: Path, number: int) -> bool:
    try:
        return read_header(ring).stacks_told == number
    except (OSError, RingError):
        return False
