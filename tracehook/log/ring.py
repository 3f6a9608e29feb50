"""The file of a ring (cpp/events/ring.h) as Python reads it. Its records: :mod:`tracehook.log.records`."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from tracehook.log.calls import HEAD_BYTES, NARROW_BYTES, SLOT_BYTES, WITH_TALLIES, widened
from tracehook.log.records import RECORD_BYTES, Record, fields_of, unpack

MAGIC = b"THRING02"
_OLD_MAGIC = b"THRING01"  # its records: ring_old.py

# struct RingHeader: magic, header bytes, record bytes, capacity, pushed, drained, dropped, epoch, pid, looked
_HEADER = struct.Struct("<8sIIQQQQQQQ")
# What it has since schema 1.10: the signal that ends the process, its sender, when; slots of calls, bytes of each
_ENDING = struct.Struct("<IiQII")
_STACKS = struct.Struct("<II")  # how often somebody asked for stacks; the question that was answered last
_STOPPED = struct.Struct("<iIQ")  # why the log stopped, whether the process ended in order, and when the log stopped
STACKS_ASKED = _HEADER.size + _ENDING.size  # place in the file
OWN_BYTES = STACKS_ASKED + _STACKS.size + _STOPPED.size  # of the header, without the words at its end
_WORDS = struct.Struct("<I2048s")  # what ended the program: bytes, JSON
_TAKEN_BYTES = 16  # of a slot of calls, state, number and key of the communicator: zero only until the first one


class RingError(ValueError):
    """The file is not a ring of a tracehook that this one can read."""


class UnbornRing(RingError):
    """Nothing was written into the file yet: its process was killed while it made it, before the first event."""


MOST_EVENTS = 65536  # that a ring holds; 6 MiB


class RingHeader(NamedTuple):
    """What a ring file says of itself: those in [drained, pushed) did not reach the log yet."""

    header_bytes: int
    capacity: int
    pushed: int
    drained: int
    dropped: int
    epoch_ns: int
    pid: int
    looked_ns: int  # when the process last looked for events to write: it was alive then
    signal: int = 0  # that ends the process; 0: none is known
    sender: int = 0  # the process that sent it; 0: none, as for a fault
    signal_ns: int = 0
    call_slots: int = 0
    call_slot_bytes: int = 0
    stacks_asked: int = 0
    stacks_told: int = 0
    log_error: int = 0  # errno with which the log stopped; -1: it had none; 0: the log did not stop
    log_ended: int = 0  # 1: the process came to its end in order, and could not log that
    log_stopped_ns: int = 0
    is_old: bool = False  # its records are those of ring_old.py


class RingFile(NamedTuple):
    """What a ring file held: every event that its process had logged or was still to log."""

    header: RingHeader
    records: list[Any]  # Record, or ring_old.OldRecord
    slots: tuple[bytes, ...] = ()  # of calls: see calls.py and tallies.py
    words: Mapping[str, str] = {}  # fields of the event `python.exception`, whose record has no texts


def told_by(record: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a record of a file, as they stand in the log (docs/log-schema.md)."""
    if isinstance(record, Record):
        return fields_of(record)
    from tracehook.log import ring_old

    return ring_old.fields_of(record)


def read_file(path: Path) -> RingFile:
    """Read a ring file, also of a process that was killed, or that still runs.

    Returns the records that did not reach the log yet, oldest first. Raises :class:`RingError` with one line if the
    file is no ring or was cut.
    """
    if path.exists() and not path.is_file():
        raise RingError(f"{path}: not a regular file")  # opening a pipe would wait for a writer
    with path.open("rb", buffering=0) as file:
        return _read(path, file)


def read_header(path: Path) -> RingHeader:
    """Read how many events a ring file holds, without them. Raises :class:`RingError` if the file is no ring."""
    with path.open("rb", buffering=0) as file:
        return header_in(path, file.read(OWN_BYTES))


def slots_at(header: RingHeader) -> int | None:
    """Return where in the file the slots of calls begin; None if it has none that this tracehook knows."""
    size = header.call_slots * header.call_slot_bytes  # slots grow at their ends, from one version to the next
    known = header.call_slot_bytes >= NARROW_BYTES
    return header.header_bytes - size if known and size < header.header_bytes else None


def _slot(fd: int, at: int, header: RingHeader, most: int) -> bytes:
    """Read the first `most` bytes of a slot, of today's layout."""
    if header.call_slot_bytes >= WITH_TALLIES or most <= HEAD_BYTES:
        return os.pread(fd, min(most, header.call_slot_bytes), at)
    narrow = os.pread(fd, min(most - SLOT_BYTES + NARROW_BYTES, header.call_slot_bytes), at)
    return widened(narrow) if len(narrow) >= NARROW_BYTES else narrow


def header_in(path: str | Path, data: bytes) -> RingHeader:
    """Return the header that a ring file begins with. Raises :class:`RingError` if `data` is none."""
    if not any(data):
        raise UnbornRing(f"{path}: nothing was written into this ring")
    if len(data) < _HEADER.size or data[:8] not in (MAGIC, _OLD_MAGIC):
        raise RingError(f"{path}: not a tracehook ring (it does not begin with {MAGIC.decode()})")
    _, header_bytes, record_bytes, *rest = _HEADER.unpack_from(data)
    if record_bytes != RECORD_BYTES:
        raise RingError(f"{path}: records have {record_bytes} bytes, this tracehook reads {RECORD_BYTES}")
    data = data.ljust(OWN_BYTES, b"\0")
    ending = _ENDING.unpack_from(data, _HEADER.size)
    stacks = _STACKS.unpack_from(data, STACKS_ASKED)
    stopped = _STOPPED.unpack_from(data, STACKS_ASKED + _STACKS.size)
    header = RingHeader(header_bytes, *rest, *ending, *stacks, *stopped)._replace(is_old=data[:8] == _OLD_MAGIC)
    capacity, pushed, drained = header.capacity, header.pushed, header.drained
    if capacity == 0 or not drained <= pushed <= drained + capacity:
        raise RingError(f"{path}: damaged header ({drained} of {pushed} events drained, room for {capacity})")
    return header


def _read(path: Path, file: FileIO) -> RingFile:
    first = header_in(path, file.read(OWN_BYTES))
    expected = first.header_bytes + first.capacity * RECORD_BYTES
    size = file.seek(0, 2)
    if size < expected:
        raise RingError(f"{path}: cut after {size} bytes, expected {expected}")
    if first.capacity > MOST_EVENTS:  # it may be a hole in a file, and would be memory of whoever reads it
        raise RingError(f"{path}: damaged header (room for {first.capacity} events, a ring has {MOST_EVENTS} at most)")
    read: Callable[[bytes], Iterator[Any]] = unpack
    if first.is_old:
        from tracehook.log import ring_old

        read = ring_old.unpack
    records: list[Any] = []
    index = first.drained
    while index < first.pushed:  # at most two pieces: up to the last place, and from the first
        count = min(first.pushed - index, first.capacity - index % first.capacity)
        file.seek(first.header_bytes + (index % first.capacity) * RECORD_BYTES)
        records.extend(read(file.read(count * RECORD_BYTES)))
        index += count
    # What the process has written into its log meanwhile may have been overwritten here.
    file.seek(0)
    now = header_in(path, file.read(OWN_BYTES))
    left = records[max(0, now.drained - first.drained) :]
    slots: tuple[bytes, ...] = ()
    if (start := slots_at(now)) is not None:
        size = now.call_slot_bytes
        whole = SLOT_BYTES + size  # more than there is
        slots = tuple(_slot(file.fileno(), at, now, whole) for at in range(start, now.header_bytes, size))
    file.seek(OWN_BYTES)
    return RingFile(now, left, slots, _words_in(file.read(_WORDS.size)))


def _words_in(data: bytes) -> dict[str, str]:
    try:
        size, text = _WORDS.unpack(data)
        words = json.loads(text[:size])
    except (struct.error, ValueError):
        return {}
    return {name: str(word) for name, word in words.items()} if isinstance(words, dict) else {}


def read_slots(path: str | Path, most: int = SLOT_BYTES) -> list[bytes]:
    """Read the first `most` bytes of each slot of calls; nothing if the file has none that this tracehook knows."""
    return read_heads(path, most)[1]


def read_heads(path: str | Path, most: int = HEAD_BYTES) -> tuple[RingHeader, list[bytes]]:
    """Read what a ring file says of itself, and the first `most` bytes of each slot of calls that was ever used.

    Nothing of a ring takes less time to read than the heads: they are what is looked at again and again.
    """
    # Not blocking: should somebody have put a pipe here, nobody may write to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        header = header_in(path, os.pread(fd, OWN_BYTES, 0))
        start = slots_at(header)
        slots = []
        for place in range(start, header.header_bytes, header.call_slot_bytes) if start is not None else ():
            slot = _slot(fd, place, header, most)
            if len(slot) < HEAD_BYTES or not any(slot[:_TAKEN_BYTES]):
                break  # cut, or never used: a communicator takes the first free slot, so those behind it were not
            slots.append(slot)
        return header, slots
    finally:
        os.close(fd)
