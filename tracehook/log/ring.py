"""The layout of the ring (cpp/events/ring.h, event.h) as Python reads it, from memory or from a file."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from tracehook.log.calls import SLOT_BYTES
from tracehook.log.tables import ABOUT, ANSWERS, EFFECTS, EVENTS, HANDLES, KINDS, MEMORIES, OPERATIONS, reason_of

MAGIC = b"THRING01"

# struct RingHeader: magic, header bytes, record bytes, capacity, pushed, drained, dropped, epoch, pid, looked
_HEADER = struct.Struct("<8sIIQQQQQQQ")
# What it has since schema 1.10: the signal that ends the process, its sender, when; slots of calls, bytes of each
_ENDING = struct.Struct("<IiQII")
OWN_BYTES = _HEADER.size + _ENDING.size  # of the header
# struct Event, in its order; padding is explicit there, so there is none here
_RECORD = struct.Struct("<9Q2I2iHhI")

# Events of the bank: their `segment` counts the segments of our pools, not those of the allocator.
_POOL_EVENTS = frozenset(name for name, row in ABOUT.items() if "pool_segment" in row.fields)

_BORN = {1 << 8: "adopted", 1 << 9: "at_calls", 1 << 10: "one_host"}  # communicator.pending; below: core::Local
_BY_OTHERS, _EFFECT_SHIFT = 1, 8  # core::kByOthers, core::kEffectShift: in `extra` of a local registration
_MEANS = {0x20: "ipc", 0x02: "nvls", 0x01: "network", 0x10: "collnet"}  # NCCL's bits: src/include/register.h
_WHILE_CAPTURING = 1 << 31  # core::kWhileCapturing
_WINDOW_OF_OTHERS = 1 << 30  # core::kWindowOfOthers
_WINDOW_LATER = 1 << 29  # core::kWindowLater
_PEER_EVENTS = ("ipc.", "peer.")
_OF_POOL = 1 << 20  # in `extra` of an event of a peer; see bindings_ipc.cpp


class RingError(ValueError):
    """The file is not a ring of a tracehook that this one can read."""


class UnbornRing(RingError):
    """Nothing was written into the file yet: its process was killed while it made it, before the first event."""


class Record(NamedTuple):
    """One event as the ring keeps it; a field that does not apply is 0 (device and rank: -1)."""

    seq: int
    t_ns: int
    comm: int
    segment: int
    address: int
    size: int
    thread: int
    value: int
    duration_ns: int
    comm_id: int
    comm_seq: int
    result: int
    rank: int
    kind: int
    device: int
    extra: int


MOST_EVENTS = 65536  # that a ring holds; 6 MiB
RECORD_BYTES = _RECORD.size


def unpack(data: bytes) -> Iterator[Record]:
    """Yield the records of whole, consecutive entries."""
    for values in _RECORD.iter_unpack(data):
        yield Record._make(values)


def fields_of(record: Record) -> tuple[str, dict[str, Any]]:
    """Return the event's name and its fields as they stand in the log (docs/log-schema.md)."""
    name = EVENTS[record.kind] if record.kind < len(EVENTS) else f"unknown.{record.kind}"
    out: dict[str, Any] = {"seq": record.seq, "t_ns": record.t_ns}
    if record.device >= 0:
        out["device"] = record.device
    if record.comm_id:
        out["comm"] = f"{record.comm:016x}"
        out["comm_id"] = record.comm_id
        out["comm_seq"] = record.comm_seq
        if record.rank >= 0:
            out["comm_rank"] = record.rank
    if name.startswith(_PEER_EVENTS):
        out.update(_peer_fields(name, record))
    elif record.segment:
        out["pool_segment" if name in _POOL_EVENTS else "segment"] = record.segment
    if record.address and not name.startswith("placement."):
        out["addr"] = f"{record.address:#x}"
        out["size"] = record.size
    if record.duration_ns:
        out["us"] = record.duration_ns / 1000
    out.update(_extra_fields(name, record))
    return name, out


def _extra_fields(name: str, record: Record) -> dict[str, Any]:
    match name:
        case "register.local" | "deregister.local":
            out: dict[str, Any] = {"thread": record.thread, "ok": record.result == 0}
            if record.result:
                out["error"] = record.result
            elif name == "register.local" and record.value == 0:
                out["effective"] = False  # NCCL took it and gave no handle
            if record.extra & _BY_OTHERS:
                out["observed"] = True
            if name == "register.local" and (effect := record.extra >> _EFFECT_SHIFT & 0xFF):
                out["expected"] = EFFECTS[effect] if effect < len(EFFECTS) else str(effect)
            return out
        case "register.used":
            return {"thread": record.thread, "means": "+".join(_MEANS[bit] for bit in _MEANS if record.value & bit)}
        case "register.window" | "deregister.window":
            window: dict[str, Any] = {"thread": record.thread, "ok": record.result == 0}
            if record.extra & _WINDOW_OF_OTHERS:
                window["observed"] = True
            if record.result:
                window["error"] = record.result
            elif name == "register.window":
                if not record.extra & _WINDOW_OF_OTHERS:
                    window["pool"] = record.extra & ~_WHILE_CAPTURING
                if not record.extra & _WINDOW_LATER:
                    window["effective"] = record.value != 0
                if record.value:
                    window["ordinal"] = record.value - 1
                if record.extra & _WHILE_CAPTURING:
                    window["capturing"] = True
            return window
        case "segment.retire" | "segment.reuse" | "pool.grow" | "pool.shrink":
            return {"thread": record.thread, "pool": record.extra, "pool_bytes": record.value}
        case "window.defer":
            return {"segments": record.value}
        case "pool.limit":
            return {"wanted": record.value, "held": record.size}
        case "agreement.reached" | "agreement.mismatch" | "agreement.failed":
            return {"entries": record.value}
        case "agreement.timeout":
            return {"entries": record.value, "missing_rank": record.extra}
        case "placement.first_use":
            return _placement(record)
        case "placement.digest":
            return {"uses": record.size, "digest": f"{record.value:016x}"}
        case "policy.chosen":
            return {
                "choice": record.value - 1,
                "answer": ANSWERS[record.size] if record.size < len(ANSWERS) else record.size,
            }
        case "policy.expected":
            operation, bucket = record.size >> 56, record.size & ((1 << 56) - 1)
            return {
                "operation": OPERATIONS[operation][0] if operation < len(OPERATIONS) else operation,
                "bucket": bucket,
                "plain_us": (record.value >> 32) / 1000,
                "symmetric_us": (record.value & 0xFFFFFFFF) / 1000,
            }
        case "register.batch":
            return {"thread": record.thread, "count": record.value}
        case "deregister.stalled" | "segment.buried" | "register.unused" | "register.foreign":
            return {"thread": record.thread}
        case "segment.alloc" | "segment.adopt":
            known = {"memory_kind": MEMORIES[record.extra]} if 0 < record.extra < len(MEMORIES) else {}
            return {"thread": record.thread, "total": record.value, **known}
        case "segment.free" | "segment.unknown":
            return {"thread": record.thread, "total": record.value}
        case "communicator.graphs":
            return {"thread": record.thread, "graphs": record.value}
        case "communicator.uneven":
            return {"other_rank": record.extra, "registered": record.value != 0}
        case "device_communicator.create" | "device_communicator.destroy":
            error = {"error": record.result} if record.result else {}
            counted = {"device_communicators": record.value}
            return {"thread": record.thread, "ok": record.result == 0, **error, **counted}
        case "communicator.refused":
            return {"thread": record.thread, "call": record.value}
        case "python.exception" | "thread.exception":
            return {"thread": record.thread}  # what it was, the journal adds
        case "python.exit":
            return {"thread": record.thread, "status": record.value}
        case "range.map" | "range.unmap":
            adopted = {"adopted": True} if record.extra else {}
            return {"thread": record.thread, "total": record.value, **adopted}
        case "communicator.pending" | "communicator.ready":
            born: dict[str, Any] = {"ranks": record.extra} if 0 < record.extra < 1 << 31 else {}
            if name == "communicator.pending":
                if kind := record.value & 0xFF:
                    born["local"] = KINDS[kind] if kind < len(KINDS) else str(kind)
                born |= {told: True for bit, told in _BORN.items() if record.value & bit}
            return born
        case "communicator.retire" | "communicator.abort":
            return {"thread": record.thread, "registrations": record.value}
        case "communicator.failed":
            return {"ok": False, "error": record.result, "registrations": record.value}
        case "hook.attach" | "hook.enable" | "hook.disable":
            return {"segments": record.value, "bytes": record.size}
        case "hook.unsupported" | "hook.conflict":
            reason = reason_of(record.value, name)
            return {"reason": reason.name, "advice": reason.advice}
        case "ledger.check":
            return {"differences": record.value, "segments": record.size, "ok": record.value == 0}
        case "ledger.difference":
            return {"only_in": "ledger" if record.value else "allocator"}
        case _:
            return {}


def _peer_fields(name: str, record: Record) -> dict[str, Any]:
    """Who shares with whom: a group of peers has a key, but no number in the registrar."""
    out: dict[str, Any] = {"thread": record.thread, "comm": f"{record.comm:016x}", "comm_rank": record.rank}
    out["peer"] = record.extra & 0xFFFF
    is_owner = name in ("ipc.export", "ipc.release")
    if record.value:
        out["life" if is_owner else "peer_life"] = f"{record.value:016x}"
    if name.startswith("ipc."):
        kind = "pool_segment" if record.extra & _OF_POOL else "segment"
        if record.segment:
            out[kind if is_owner else f"peer_{kind}"] = record.segment
        out["generation"] = record.comm_seq
        handle = record.extra >> 16 & 0xF
        out["handle"] = HANDLES[handle] if handle < len(HANDLES) else str(handle)
    if name in ("ipc.open", "ipc.close"):
        out["ok"] = record.result == 0
        if record.result:
            out["error"] = record.result
            out["size"] = record.size
    return out


_NO_ORDINALS = {0xFFFFFFFF: "overrun"}


def _placement(record: Record) -> dict[str, Any]:
    """Where the buffers of a collective lay: window ordinal and offset in bytes; without a window, null."""
    out: dict[str, Any] = {"operation": OPERATIONS[record.extra][0] if record.extra < len(OPERATIONS) else record.extra}
    if record.result:
        out["config"] = f"{record.result & 0xFFFFFFFF:08x}"
    for side, window, offset in (
        ("send", record.value >> 32, record.address),
        ("receive", record.value & 0xFFFFFFFF, record.size),
    ):
        out[f"{side}_window"] = _NO_ORDINALS.get(window) or (window - 1 if window else None)
        out[f"{side}_offset"] = offset if window else None
    return out


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


class RingFile(NamedTuple):
    """What a ring file held: every event that its process had logged or was still to log."""

    pid: int
    epoch_ns: int
    dropped: int
    drained: int
    records: list[Record]
    looked_ns: int = 0
    signal: int = 0
    sender: int = 0
    signal_ns: int = 0
    slots: tuple[bytes, ...] = ()  # of calls: see calls.py and tallies.py


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
        return _read_header(path, file)


def slots_at(header: RingHeader) -> int | None:
    """Return where in the file the slots of calls begin; None if it has none that this tracehook knows."""
    size = header.call_slots * header.call_slot_bytes  # slots grow at their ends, from one version to the next
    return header.header_bytes - size if header.call_slot_bytes >= SLOT_BYTES and size < header.header_bytes else None


def _read_header(path: Path, file: FileIO) -> RingHeader:
    return header_in(path, file.read(OWN_BYTES))


def header_in(path: str | Path, data: bytes) -> RingHeader:
    """Return the header that a ring file begins with. Raises :class:`RingError` if `data` is none."""
    if not any(data):
        raise UnbornRing(f"{path}: nothing was written into this ring")
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise RingError(f"{path}: not a tracehook ring (it does not begin with {MAGIC.decode()})")
    _, header_bytes, record_bytes, *rest = _HEADER.unpack_from(data)
    if record_bytes != RECORD_BYTES:
        raise RingError(f"{path}: records have {record_bytes} bytes, this tracehook reads {RECORD_BYTES}")
    ending = _ENDING.unpack_from(data.ljust(OWN_BYTES, b"\0"), _HEADER.size)
    header = RingHeader(header_bytes, *rest, *ending)
    capacity, pushed, drained = header.capacity, header.pushed, header.drained
    if capacity == 0 or not drained <= pushed <= drained + capacity:
        raise RingError(f"{path}: damaged header ({drained} of {pushed} events drained, room for {capacity})")
    return header


def _read(path: Path, file: FileIO) -> RingFile:
    first = _read_header(path, file)
    expected = first.header_bytes + first.capacity * RECORD_BYTES
    size = file.seek(0, 2)
    if size < expected:
        raise RingError(f"{path}: cut after {size} bytes, expected {expected}")
    if first.capacity > MOST_EVENTS:  # it may be a hole in a file, and would be memory of whoever reads it
        raise RingError(f"{path}: damaged header (room for {first.capacity} events, a ring has {MOST_EVENTS} at most)")
    records: list[Record] = []
    index = first.drained
    while index < first.pushed:  # at most two pieces: up to the last place, and from the first
        count = min(first.pushed - index, first.capacity - index % first.capacity)
        file.seek(first.header_bytes + (index % first.capacity) * RECORD_BYTES)
        records.extend(unpack(file.read(count * RECORD_BYTES)))
        index += count
    # What the process has written into its log meanwhile may have been overwritten here.
    file.seek(0)
    now = _read_header(path, file)
    left = records[max(0, now.drained - first.drained) :]
    slots: tuple[bytes, ...] = ()
    if (start := slots_at(now)) is not None:
        size = now.call_slot_bytes
        slots = tuple(os.pread(file.fileno(), size, at) for at in range(start, now.header_bytes, size))
    ending = (now.signal, now.sender, now.signal_ns)
    return RingFile(now.pid, now.epoch_ns, now.dropped, now.drained, left, now.looked_ns, *ending, slots)
