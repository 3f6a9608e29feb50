"""How many collectives of each kind a communicator had: the ends of a ring's slots, and their lines in the log.

A kind is all that NCCL's path depends on (cpp/events/tally.h). Which path that is, :mod:`tracehook.nccl.counts` says.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tracehook.log.calls import REDUCTIONS, SLOT_BYTES, TYPES, number_or_none, operation_name, surroundings_in
from tracehook.log.calls import unpack as unpack_calls

_ENTRY = struct.Struct("<5Q")  # kind, count, bytes, least, most
_OTHER = (1 << 64) - 1  # the kind of those that found no room
OTHER: Final = "other"
_WINDOWS = ("none", "send", "receive", "both")
_GROUPS = ("alone", "grouped", "alike", "alike")
DOMAINS: Final = ("", "nvlink", "one_host", "peers", "several")  # "": not known
_KNOWN = 1 << 63
# NCCL's settings that its path depends on, as far as tracehook.nccl.paths knows.
SETTINGS: Final = (
    *("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CTA_POLICY", "NCCL_SYM_CE_THRESHOLD", "NCCL_SYM_KERNEL"),
    *("NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_SYM_NOWIN_ENABLE"),
)
_PRINTED = re.compile(r"[!-~]{1,100}")  # a value that a line keeps


class Tally(NamedTuple):
    """One kind of calls, and how many. `nbytes` are of all of them, `least` and `most` of one."""

    operation: str
    dtype: str
    reduction: str
    windows: str  # which buffers lie in windows: none, send, receive, both
    group: str  # what else was in its NCCL group: alone, grouped (other calls), alike (calls of the same kind)
    captured: bool  # into a CUDA graph: counted once, however often the graph runs
    bucket: int  # bytes, the power of two at or below; 0: empty
    count: int  # type: ignore[assignment]  # not the tuple's method
    nbytes: int
    least: int
    most: int


class Surroundings(NamedTuple):
    """What NCCL's path depends on besides the call."""

    domain: str = ""  # one of DOMAINS
    policy: int = 0  # CTA policy of the communicator
    capability: int = 0  # of the devices, as 90; 0: not known

    def packed(self) -> int:
        """Return it as a slot keeps it."""
        return _KNOWN | DOMAINS.index(self.domain) | (self.policy & 0xFF) << 8 | (self.capability & 0xFFFF) << 16

    @classmethod
    def unpacked(cls, packed: int) -> Surroundings:
        """Return what a slot keeps."""
        domain = packed & 0xFF
        name = DOMAINS[domain] if domain < len(DOMAINS) else ""
        return cls(name, packed >> 8 & 0xFF, packed >> 16 & 0xFFFF)


class Tallies(NamedTuple):
    """All kinds of calls of one communicator of one process."""

    comm: str
    comm_id: int
    rank: int  # in the communicator; -1: not known
    size: int  # ranks; -1: not known
    surroundings: Surroundings
    settings: Mapping[str, str]  # of NCCL
    rows: tuple[Tally, ...]


def tally_of(kind: int, count: int, nbytes: int, least: int, most: int) -> Tally:
    """Return what an entry of a slot says."""
    if kind == _OTHER:
        return Tally(OTHER, "", "", "none", "alone", False, 0, count, nbytes, least, most)
    dtype, reduction, bucket = kind >> 8 & 0xFF, kind >> 16 & 0xFF, kind >> 24 & 0xFF
    return Tally(
        operation=operation_name(kind & 0xFF).removesuffix("_config").removesuffix("_in_place"),
        dtype=TYPES[dtype] if dtype < len(TYPES) else f"type{dtype}",
        reduction=REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else "premul_sum",
        windows=_WINDOWS[kind >> 32 & 3],
        group=_GROUPS[kind >> 35 & 3],
        captured=bool(kind >> 34 & 1),
        bucket=1 << bucket >> 1,
        count=count,
        nbytes=nbytes,
        least=least,
        most=most,
    )


def unpack(slot: bytes, settings: Mapping[str, str]) -> Tallies | None:
    """Return what a slot holds, with those of these settings that matter; None if it has counted nothing."""
    calls = unpack_calls(slot)
    entries = slot[SLOT_BYTES:]
    whole = entries[: len(entries) // _ENTRY.size * _ENTRY.size]
    rows = tuple(tally_of(*values) for values in _ENTRY.iter_unpack(whole) if values[0] and values[1])
    if calls is None or not rows:
        return None
    around = Surroundings.unpacked(surroundings_in(slot))
    return Tallies(calls.comm, calls.comm_id, calls.rank, calls.size, around, chosen(settings), rows)


def chosen(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of these settings that NCCL's path depends on."""
    return {name: settings[name] for name in SETTINGS if name in settings}


def fields_of(tallies: Tallies) -> dict[str, Any]:
    """Return the fields of ``communicator.paths``."""
    around = tallies.surroundings
    known = {"domain": around.domain, "policy": str(around.policy), "capability": str(around.capability)}
    kept = {name: value for name, value in tallies.settings.items() if _PRINTED.fullmatch(value)}
    return {
        "comm": tallies.comm,
        "comm_id": tallies.comm_id,
        **({"comm_rank": tallies.rank} if tallies.rank >= 0 else {}),
        **({"ranks": tallies.size} if tallies.size > 0 else {}),
        "surroundings": " ".join(f"{name}={value}" for name, value in {**known, **kept}.items()),
        "tallies": " ".join(",".join(_text(value) for value in row) for row in tallies.rows),
    }


def parse(event: Mapping[str, Any]) -> Tallies | None:
    """Return what a line ``communicator.paths`` tells; None if it is damaged."""
    try:
        told = dict(item.split("=", 1) for item in str(event["surroundings"]).split())
        domain = told.pop("domain")
        around = Surroundings(domain if domain in DOMAINS else "", int(told.pop("policy")), int(told.pop("capability")))
        return Tallies(
            comm=str(event["comm"]),
            comm_id=int(event["comm_id"]),
            rank=number_or_none(event.get("comm_rank")),
            size=number_or_none(event.get("ranks")),
            surroundings=around,
            settings=chosen(told),
            rows=tuple(_row(text.split(",")) for text in str(event["tallies"]).split()),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _text(value: object) -> str:
    return ("captured" if value else "eager") if isinstance(value, bool) else str(value)


def _row(parts: list[str]) -> Tally:
    operation, dtype, reduction, windows, group, captured, *numbers = parts
    bucket, count, nbytes, least, most = map(int, numbers)
    return Tally(
        operation, dtype, reduction, windows, group, captured == "captured", bucket, count, nbytes, least, most
    )
