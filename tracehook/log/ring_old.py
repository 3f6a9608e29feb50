"""The records of old rings, which begin with "THRING01".

A few members of an event (`value`, `extra`, ...) meant something else in each kind of event. Nothing new comes here:
what a ring keeps today is in :mod:`tracehook.log.records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from tracehook.log.records import means_in
from tracehook.log.tables import ANSWERS, EFFECTS, EVENTS, HANDLES, KINDS, MEMORIES, OPERATIONS, reason_of

# struct Event of that time, in its order; padding was explicit there
_RECORD = struct.Struct("<9Q2I2iHhI")

# Events of the bank: their `segment` counts the segments of our pools, not those of the allocator.
_POOL_EVENTS = frozenset(
    (
        *("segment.retire", "segment.reuse", "pool.grow", "pool.shrink"),
        *("register.window", "deregister.window", "register.stalled"),
    )
)

_BORN = {1 << 8: "adopted", 1 << 9: "at_calls", 1 << 10: "one_host"}  # communicator.pending; below: Local
_BY_OTHERS, _EFFECT_SHIFT = 1, 8  # kByOthers, kEffectShift: in `extra` of a local registration
_WHILE_CAPTURING = 1 << 31  # kWhileCapturing
_WINDOW_OF_OTHERS = 1 << 30  # kWindowOfOthers
_WINDOW_LATER = 1 << 29  # kWindowLater
_PEER_EVENTS = ("ipc.", "peer.")
_OF_POOL = 1 << 20  # in `extra` of an event of a peer; see bindings_ipc.cpp


class OldRecord(NamedTuple):
    """One event as an old ring keeps it; a field that does not apply is 0 (device and rank: -1)."""

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


def unpack(data: bytes) -> Iterator[OldRecord]:
    """Yield the records of whole, consecutive entries."""
    for values in _RECORD.iter_unpack(data):
        yield OldRecord._make(values)


def fields_of(record: OldRecord) -> tuple[str, dict[str, Any]]:
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


def _extra_fields(name: str, record: OldRecord) -> dict[str, Any]:
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
            return {"thread": record.thread, "means": means_in(record.value)}
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
            reason = reason_of(record.value)
            return {"reason": reason.name, "advice": reason.advice}
        case "ledger.check":
            return {"differences": record.value, "segments": record.size, "ok": record.value == 0}
        case "ledger.difference":
            return {"only_in": "ledger" if record.value else "allocator"}
        case _:
            return {}


def _peer_fields(name: str, record: OldRecord) -> dict[str, Any]:
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


def _placement(record: OldRecord) -> dict[str, Any]:
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
