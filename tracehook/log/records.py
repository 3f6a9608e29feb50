"""One event as the ring keeps it (cpp/events/event.h), and its fields as the log shows them.

The tables say how a record is laid out: cpp/events/head.def the head, events.def the members of each event,
types.def the types. :data:`SHOW` says what the log shows of a member of each type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
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
NO_SIZE: Final = (1 << 64) - 1  # events::kNoSize
NO_INDEX: Final = (1 << 32) - 1  # events::kNoIndex
OF_POOL: Final = 1 << 63  # events::kOfPool
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
        """Return its members, as the ring keeps them."""
        row = _row(self.kind)
        return dict(zip(row.members, row.layout.unpack_from(self.own), strict=True))


def unpack(data: bytes) -> Iterator[Record]:
    """Yield the records of whole, consecutive entries."""
    return map(Record._make, _RECORD.iter_unpack(data))


def own_layout(event: str) -> struct.Struct:
    """Return the layout of the members of an event."""
    return struct.Struct("<" + "".join(_FORMATS[TYPES[kind].of_cpp] for kind, _ in ABOUT[event].parts("OWN")))


# --- what the log shows of a member ---


def means_in(bits: int) -> str:
    """Return by which means NCCL uses a registration."""
    return "+".join(means for bit, means in _MEANS.items() if bits & bit)


def _shown(show: Callable[[Any], Any] | None = None, unless: int | None = None) -> Callable[[Fields, str, Any], None]:
    """Return what puts a value into a line, as `show` makes it; not the value `unless`, which stands for none."""

    def put(out: Fields, name: str, value: Any) -> None:
        if value != unless:
            out[name] = show(value) if show is not None else value

    return put


def _name_in(names: Sequence[str]) -> Callable[[int], str]:
    return lambda number: names[number] if number < len(names) else str(number)  # a later version may know more


def _put_segment(out: Fields, name: str, value: int) -> None:
    if value & OF_POOL:
        out[name.replace("segment", "pool_segment")] = value & ~OF_POOL
    elif value:
        out[name] = value


def _put_reason(out: Fields, name: str, value: int) -> None:
    reason = tables.reason_of(value)
    out[name], out["advice"] = reason.name, reason.advice


SHOW: Final[dict[str, Callable[[Fields, str, Any], None]]] = {
    **dict.fromkeys(("number", "small", "integer", "position", "peer", "amount", "yes_no"), _shown()),
    **dict.fromkeys(("id", "ranks", "flag"), _shown(unless=0)),
    "size": _shown(unless=NO_SIZE),
    "index": _shown(unless=NO_INDEX),
    "offset": _shown(lambda value: value if value != NO_SIZE else None),
    "window": _shown(lambda value: "overrun" if value == NO_INDEX else value - 1 if value else None),
    "any_segment": _put_segment,
    "address": _shown("{:#x}".format, unless=0),
    "key": _shown("{:016x}".format, unless=0),
    "digest": _shown("{:016x}".format),
    "settings": _shown("{:08x}".format, unless=0),
    "nanoseconds": _shown(lambda value: value / 1000),
    "maybe": _shown(lambda value: value == 2, unless=0),  # events::Maybe
    "operation": _shown(_name_in([name for name, *_ in tables.OPERATIONS])),
    "local_kind": _shown(_name_in(tables.KINDS), unless=0),
    "memory_kind": _shown(_name_in(tables.MEMORIES), unless=0),
    "pool_kind": _shown(_name_in(tables.POOLS), unless=0),
    "rules": _shown(lambda value: [bit for bit in range(16) if value >> bit & 1], unless=0),
    "effect": _shown(_name_in(tables.EFFECTS), unless=0),
    "answer": _shown(_name_in(tables.ANSWERS)),
    "handle": _shown(_name_in(tables.HANDLES)),
    "side": _shown(_name_in(("allocator", "ledger"))),
    "reason": _put_reason,
    "means": _shown(means_in),
    "hidden": lambda *_: None,
}


class _Row(NamedTuple):
    """How to read the records of one kind."""

    event: str
    has_thread: bool
    has_result: bool
    layout: struct.Struct
    members: tuple[str, ...]
    puts: tuple[tuple[str, Callable[[Fields, str, Any], None]], ...]


@cache
def _row(kind: int) -> _Row:
    if kind >= len(EVENTS):  # of a newer native core
        return _Row(f"unknown.{kind}", False, False, struct.Struct(""), (), ())
    about = ABOUT[EVENTS[kind]]
    members = about.parts("OWN")
    puts = tuple((tables.field_of(kind, name), SHOW[kind]) for kind, name in members)
    shows = {name for name, _ in about.parts("SHOW")}
    names = tuple(name for _, name in members)
    return _Row(EVENTS[kind], "thread" in shows, "result" in shows, own_layout(EVENTS[kind]), names, puts)


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
    for (name, put), value in zip(row.puts, row.layout.unpack_from(record.own), strict=True):
        put(out, name, value)
    return row.event, out
