"""The rings of a rehearsed job, multiplied as its logs are, and the sign of life that its processes give."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from support.multiplied import path_of
from tracehook.log import ring
from tracehook.log.records import RECORD_BYTES
from tracehook.log.ring import read_slots

_HEADER = 96  # bytes
_EPOCH, _LOOKED = 48, 64  # places in it
_KEY, _RANK_END = 8, 24  # places in a slot: its key, and what comes after rank and size
_WHOLE_SLOT = 1 << 20  # more than one has


class Rings:
    """The rings of a job that was killed, without their records, each to be written for several ranks of a larger job.

    Ranks of the larger job have the calls of the rank that they are made of, so that one that waits there waits here.
    """

    def __init__(self, template: Path) -> None:
        paths = sorted(template.glob("*.ring"), key=lambda path: ring.read_header(path).pid)
        self.headers = [ring.read_header(path) for path in paths]
        self.heads = [path.read_bytes()[:_HEADER] for path in paths]
        self.slots = [read_slots(path, _WHOLE_SLOT) for path in paths]

    def write(self, path: Path, rank: int, ranks: int) -> None:
        """Write the ring of one rank: its records are a hole in the file."""
        which = rank % len(self.headers)
        header = self.headers[which]
        with path.open("wb") as file:
            file.write(self.heads[which])
            file.seek(header.header_bytes - header.call_slots * header.call_slot_bytes)
            for slot in self.slots[which]:
                file.write(self._slot(slot, rank, ranks))
            file.truncate(header.header_bytes + header.capacity * RECORD_BYTES)

    def _slot(self, slot: bytes, rank: int, ranks: int) -> bytes:
        was = len(self.headers)
        key, its_rank, size = struct.unpack_from("<Q2i", slot, _KEY)
        new = (key, rank, ranks) if size == was else ((key + rank // was) & (1 << 64) - 1, its_rank, size)
        return slot[:_KEY] + struct.pack("<Q2i", *new) + slot[_RANK_END:]


def write_rings(template: Path, target: Path, ranks: int, folders: bool = False) -> list[Path]:
    """Write a ring beside the log of each rank; return their paths."""
    rings = Rings(template)
    paths = [path_of(target, rank, folders).with_suffix(".ring") for rank in range(ranks)]
    for rank, path in enumerate(paths):
        rings.write(path, rank, ranks)
    return paths


def give_sign_of_life(rings: list[Path], looked_ns: int) -> None:
    """Let the processes have looked for something to log just now, when their own clock showed `looked_ns`."""
    epoch = time.time_ns() - looked_ns
    for path in rings:
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, struct.pack("<Q", epoch), _EPOCH)
        os.pwrite(fd, struct.pack("<Q", looked_ns), _LOOKED)
        os.close(fd)
