"""The slots of calls in the file of a ring, read while its process goes on."""

from __future__ import annotations

import os
from pathlib import Path

from tracehook.log.calls import HEAD_BYTES, SLOT_BYTES
from tracehook.log.ring import OWN_BYTES, RingHeader, header_in, slots_at

_TAKEN_BYTES = 16  # state, number and key of the communicator: zero only until the first one


def read_heads(path: str | Path) -> tuple[RingHeader, list[bytes]]:
    """Read what a ring file says of itself, and the head of each slot of calls that was ever used.

    Nothing of a ring takes less time to read: it is what is looked at again and again.
    """
    return _read(path, HEAD_BYTES)


def read_slots(path: str | Path, most: int = SLOT_BYTES) -> list[bytes]:
    """Read the first `most` bytes of each slot of calls; nothing if the file has none that this tracehook knows."""
    return _read(path, most)[1]


def _read(path: str | Path, most: int) -> tuple[RingHeader, list[bytes]]:
    # Not blocking: should somebody have put a pipe here, nobody may write to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        header = header_in(path, os.pread(fd, OWN_BYTES, 0))
        start = slots_at(header)
        slots = []
        for place in range(start, header.header_bytes, header.call_slot_bytes) if start is not None else ():
            slot = os.pread(fd, min(most, header.call_slot_bytes), place)
            if len(slot) < HEAD_BYTES or not any(slot[:_TAKEN_BYTES]):
                break  # cut, or never used: a communicator takes the first free slot, so those behind it were not
            slots.append(slot)
        return header, slots
    finally:
        os.close(fd)
