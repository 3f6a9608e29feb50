"""Rings of older versions ("THRING01"), in which a few members meant something else in each kind of event."""

import struct
from pathlib import Path
from typing import Any

import pytest

from tracehook.log import ring, ring_old
from tracehook.log.tables import EVENTS

COMM = {"comm": 0xABC, "comm_id": 1, "comm_seq": 7, "rank": 3, "device": 0}
SEGMENT = {"segment": 5, "address": 0x7F00, "size": 4096}
OF_COMM = {"comm": "0000000000000abc", "comm_id": 1, "comm_seq": 7, "comm_rank": 3, "device": 0}
OF_SEGMENT = {"segment": 5, "addr": "0x7f00", "size": 4096}
OF_POOL = {"pool_segment": 5, "addr": "0x7f00", "size": 4096}
OF_PEER = {"comm": "0000000000000abc", "comm_rank": 3, "device": 0, "generation": 7}
THREAD = {"thread": 4242}
OVERRUN = 0xFFFFFFFF

CASES: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("segment.alloc", SEGMENT | {"value": 9, "extra": 2},
     OF_SEGMENT | THREAD | {"total": 9, "memory_kind": "shareable"}),
    ("segment.free", SEGMENT | {"value": 9, "extra": 2}, OF_SEGMENT | THREAD | {"total": 9}),
    ("range.map", {"address": 16, "size": 8, "extra": 1},
     {"addr": "0x10", "size": 8, "total": 0, "adopted": True} | THREAD),
    ("communicator.pending", COMM | {"extra": 8, "value": 1 << 10 | 1},
     OF_COMM | {"ranks": 8, "local": "observed", "one_host": True}),
    ("communicator.pending", COMM | {"extra": OVERRUN}, OF_COMM),
    ("communicator.abort", COMM | {"value": 9}, OF_COMM | THREAD | {"registrations": 9}),
    ("communicator.failed", {"result": 1, "value": 4}, {"ok": False, "error": 1, "registrations": 4}),
    ("communicator.uneven", {"value": 1, "extra": 6}, {"other_rank": 6, "registered": True}),
    ("register.local", COMM | SEGMENT | {"value": 9, "duration_ns": 2500},
     OF_COMM | OF_SEGMENT | THREAD | {"us": 2.5, "ok": True}),
    ("register.local", {"extra": 1 | 3 << 8},
     THREAD | {"ok": True, "effective": False, "observed": True, "expected": "network"}),
    ("deregister.local", {"result": -1}, THREAD | {"ok": False, "error": -1}),
    ("register.used", {"value": 0x21}, THREAD | {"means": "ipc+network"}),
    ("register.window", SEGMENT | {"value": 3, "extra": 1 << 31 | 2},
     OF_POOL | THREAD | {"ok": True, "pool": 2, "effective": True, "ordinal": 2, "capturing": True}),
    ("register.window", {"extra": 1 << 30 | 1 << 29}, THREAD | {"ok": True, "observed": True}),
    ("deregister.window", {"result": 5}, THREAD | {"ok": False, "error": 5}),
    ("pool.grow", SEGMENT | {"value": 30, "extra": 2}, OF_POOL | THREAD | {"pool": 2, "pool_bytes": 30}),
    ("pool.limit", {"value": 10, "size": 20}, {"wanted": 10, "held": 20}),
    ("window.defer", {"value": 3}, {"segments": 3}),
    ("agreement.timeout", {"value": 1, "extra": 6}, {"entries": 1, "missing_rank": 6}),
    ("placement.first_use", {"value": 3 << 32 | OVERRUN, "address": 9, "size": 1, "extra": 5, "result": -1},
     {"operation": "scatter", "config": "ffffffff", "send_window": 2, "send_offset": 9, "receive_window": "overrun",
      "receive_offset": 1}),
    ("placement.digest", {"value": 10, "size": 2}, {"uses": 2, "digest": "000000000000000a"}),
    ("policy.chosen", {"value": 1, "size": 2}, {"choice": 0, "answer": "none"}),
    ("policy.expected", {"value": 21_500 << 32 | 13_250, "size": 1 << 56 | 8},
     {"operation": "all_gather", "bucket": 8, "plain_us": 21.5, "symmetric_us": 13.25}),
    ("ipc.export", COMM | {"comm_id": 0, "segment": 4, "value": 10, "extra": 1 << 20 | 2 << 16 | 6},
     OF_PEER | THREAD | {"peer": 6, "life": "000000000000000a", "pool_segment": 4, "handle": "file"}),
    ("ipc.open", COMM | {"comm_id": 0, "segment": 4, "size": 8, "result": 2},
     OF_PEER | THREAD | {"peer": 0, "peer_segment": 4, "handle": "none", "ok": False, "error": 2, "size": 8}),
    ("ledger.check", {"value": 1, "size": 6}, {"differences": 1, "segments": 6, "ok": False}),
    ("ledger.difference", {"value": 1}, {"only_in": "ledger"}),
    ("hook.enable", {"value": 2, "size": 10}, {"segments": 2, "bytes": 10}),
    ("python.exit", {"value": 3}, THREAD | {"status": 3}),
    ("device_communicator.create", {"value": 2, "result": 5},
     THREAD | {"ok": False, "error": 5, "device_communicators": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("event", "given", "told"), CASES)
def test_an_old_record_is_read(tmp_path: Path, event: str, given: dict[str, int], told: dict[str, Any]) -> None:
    """The file says which records it has; what they tell is what the log had of such an event."""
    values = dict.fromkeys(ring_old.OldRecord._fields, 0) | {
        "rank": -1, "device": -1, "seq": 1, "t_ns": 2, "thread": 4242,
    }  # fmt: skip
    values |= {"kind": EVENTS.index(event)} | given
    header = struct.pack("<8sIIQQQQQQQ", b"THRING01", 4096, 96, 4, 1, 0, 0, 0, 7, 0)
    path = tmp_path / "a.ring"
    path.write_bytes(header.ljust(4096, b"\0") + struct.pack("<9Q2I2iHhI", *values.values()).ljust(4 * 96, b"\0"))
    (record,) = ring.read_file(path).records
    assert ring.told_by(record) == (event, {"seq": 1, "t_ns": 2} | told)


def test_the_header_says_that_a_ring_is_old() -> None:
    """Who reads no records need not care."""
    for magic, is_old in ((b"THRING01", True), (ring.MAGIC, False)):
        data = struct.pack("<8sIIQQQQQQQ", magic, 4096, 96, 4, 1, 0, 0, 0, 7, 0)
        assert ring.header_in("a", data).is_old == is_old
