"""One event as the ring keeps it (cpp/events/event.h), and its fields as the log shows them.

The tables say how a record is laid out: cpp/events/head.def the head, events.def what each event has of its own,
types.def the types. :data:`SHOW` says what the log shows of a member of each type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from tracehook.log import tables
from tracehook.log.tables import ABOUT, EVENTS, HEAD, TYPES

_FORMATS: Final = {
    "std::uint64_t": "Q",
    "std::uint32_t": "I",
    "std::int32_t": "i",
    "std::uint16_t": "H",
    "std::int16_t": "h",
    "EventKind": "H",
    "std::uint8_t": "B",
    "bool": "?",
}
OWN_BYTES: Final = 40
_HEAD_FORMAT: Final = "<" + "".join(_FORMATS[kind] for kind, _ in HEAD)
_RECORD: Final = struct.Struct(f"{_HEAD_FORMAT}{OWN_BYTES}s")
RECORD_BYTES: Final = _RECORD.size
NO_SIZE: Final = (1 << 64) - 1  # core::kNoSize
NO_INDEX: Final = (1 << 32) - 1  # core::kNoIndex
OF_POOL: Final = 1 << 63  # core::kOfPool
_MEANS: Final = {0x20: "ipc", 0x02: "nvls", 0x01: "network", 0x10: "collnet"}  # NCCL's bits: src/include/register.h

Fields = dict[str, Any]


class Record(NamedTuple):
    """One event; a member of the head that does not apply is 0 (device and rank: -1)."""

    seq: int
    t_ns: int
    comm: int
    duration_ns: int
    thread: int
    comm_id: int
    comm_seq: int
    comm_rank: int
    result: int
    kind: int
    device: int
    own: bytes

    def members(self) -> dict[str, Any]:
        """Return what it has of its own, as the ring keeps it."""
        row = _row(self.kind)
        return dict(zip(row.names, row.layout.unpack_from(self.own), strict=True))


def unpack(data: bytes) -> Iterator[Record]:
    """Yield the records of whole, consecutive entries."""
    return map(Record._make, _RECORD.iter_unpack(data))


def column(data: bytes, member: str) -> list[int]:
    """Return a member of the head of each of these records."""
    at, code = _PLACES[member]
    view: Any = memoryview(data).cast(code)  # type: ignore[call-overload]
    values: list[int] = view[at :: RECORD_BYTES // view.itemsize].tolist()
    return values


def own_layout(event: str) -> struct.Struct:
    """Return the layout of what an event has of its own."""
    return struct.Struct("<" + "".join(_FORMATS[TYPES[kind].of_cpp] for kind, _ in ABOUT[event].own))


def _places() -> dict[str, tuple[int, str]]:
    """Return where the members of the head are, in units of their own size, and their types."""
    places, at = {}, 0
    for kind, name in HEAD:
        code = _FORMATS[kind]
        places[name] = (at // struct.calcsize(code), code)
        at += struct.calcsize(code)
    return places


_PLACES: Final = _places()


# --- what the log shows of a member ---


def _always(out: Fields, name: str, value: Any) -> None:
    out[name] = value


def _unless_0(out: Fields, name: str, value: int) -> None:
    if value:
        out[name] = value


def _unless(nothing: int) -> Callable[[Fields, str, int], None]:
    def show(out: Fields, name: str, value: int) -> None:
        if value != nothing:
            out[name] = value

    return show


def _printed(form: str, always: bool = False) -> Callable[[Fields, str, int], None]:
    def show(out: Fields, name: str, value: int) -> None:
        if value or always:
            out[name] = format(value, form)

    return show


def _named(names: tuple[str, ...], always: bool = True) -> Callable[[Fields, str, int], None]:
    def show(out: Fields, name: str, value: int) -> None:
        if value or always:  # a later version may know more of them
            out[name] = names[value] if value < len(names) else str(value)

    return show


def _segment(out: Fields, name: str, value: int) -> None:
    if value & OF_POOL:
        out[name.replace("segment", "pool_segment")] = value & ~OF_POOL
    elif value:
        out[name] = value


def _window(out: Fields, name: str, value: int) -> None:
    out[name] = "overrun" if value == NO_INDEX else value - 1 if value else None


def _offset(out: Fields, name: str, value: int) -> None:
    out[name] = value if value != NO_SIZE else None


def _ranks(out: Fields, name: str, value: int) -> None:
    if value > 0:
        out[name] = value


def _maybe(out: Fields, name: str, value: int) -> None:
    if value:
        out[name] = value == 2  # core::Maybe


def _microseconds(out: Fields, name: str, value: int) -> None:
    out[name.removesuffix("ns") + "us"] = value / 1000


def _reason(out: Fields, _: str, value: int) -> None:
    reason = tables.reason_of(value)
    out["reason"], out["advice"] = reason.name, reason.advice


def _means(out: Fields, name: str, value: int) -> None:
    out[name] = "+".join(_MEANS[bit] for bit in _MEANS if value & bit)


def _hidden(*_: Any) -> None:
    pass


SHOW: Final[dict[str, Callable[[Fields, str, Any], None]]] = {
    **dict.fromkeys(("number", "small", "integer", "position", "peer", "amount", "yes_no"), _always),
    "size": _unless(NO_SIZE),
    "offset": _offset,
    "id": _unless_0,
    "any_segment": _segment,
    "index": _unless(NO_INDEX),
    "ranks": _ranks,
    "window": _window,
    "address": _printed("#x"),
    "key": _printed("016x"),
    "digest": _printed("016x", always=True),
    "settings": _printed("08x"),
    "nanoseconds": _microseconds,
    "flag": _unless_0,
    "maybe": _maybe,
    "operation": _named(tuple(name for name, *_ in tables.OPERATIONS)),
    "local_kind": _named(tables.KINDS, always=False),
    "memory_kind": _named(tables.MEMORIES, always=False),
    "effect": _named(tables.EFFECTS, always=False),
    "answer": _named(tables.ANSWERS),
    "handle": _named(tables.HANDLES),
    "reason": _reason,
    "side": _named(("allocator", "ledger")),
    "means": _means,
    "hidden": _hidden,
}


class _Row(NamedTuple):
    """How to read the records of one kind."""

    event: str
    has_thread: bool
    has_result: bool
    layout: struct.Struct
    names: tuple[str, ...]
    shown: tuple[Callable[[Fields, str, Any], None], ...]


@cache
def _row(kind: int) -> _Row:
    if kind >= len(EVENTS):  # of a newer native core
        return _Row(f"unknown.{kind}", False, False, struct.Struct(""), (), ())
    event = EVENTS[kind]
    about = ABOUT[event]
    types, names = tuple(kind for kind, _ in about.own), tuple(name for _, name in about.own)
    shown = tuple(SHOW[each] for each in types)
    return _Row(event, "thread" in about.shown, "result" in about.shown, own_layout(event), names, shown)


def fields_of(record: Record) -> tuple[str, Fields]:
    """Return the event's name and its fields as they stand in the log (docs/log-schema.md)."""
    row = _row(record.kind)
    out: Fields = {"seq": record.seq, "t_ns": record.t_ns}
    if record.device >= 0:
        out["device"] = record.device
    if record.comm_id or record.comm:
        out["comm"] = f"{record.comm:016x}"
        if record.comm_id:  # a group of peers has none
            out["comm_id"] = record.comm_id
            out["comm_seq"] = record.comm_seq
        if record.comm_rank >= 0:
            out["comm_rank"] = record.comm_rank
    if record.duration_ns:
        out["us"] = record.duration_ns / 1000
    if row.has_thread:
        out["thread"] = record.thread
    if row.has_result:
        out["ok"] = record.result == 0
        if record.result:
            out["error"] = record.result
    for name, show, value in zip(row.names, row.shown, row.layout.unpack_from(record.own), strict=True):
        show(out, name, value)
    return row.event, out
