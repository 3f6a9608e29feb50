"""The fields of the log that the audit reads, with their SQL types: one column of table ``event`` each.

What they mean stands in docs/log-schema.md. A newer minor schema may have more; those are left unread.
"""

from __future__ import annotations

from typing import Final

# Of every event.
FIELDS: Final = {
    "event": "VARCHAR",
    "seq": "BIGINT",
    "t_ns": "BIGINT",
    "device": "INTEGER",
    "comm": "VARCHAR",
    "comm_id": "BIGINT",
    "comm_seq": "BIGINT",
    "comm_rank": "INTEGER",
    "segment": "BIGINT",
    "pool_segment": "BIGINT",
    "addr": "VARCHAR",
    "size": "UBIGINT",
    "us": "DOUBLE",
    "thread": "BIGINT",
    "ok": "BOOLEAN",
    "error": "INTEGER",
    "effective": "BOOLEAN",
    "observed": "BOOLEAN",
    "local": "VARCHAR",
    "adopted": "BOOLEAN",
    "total": "UBIGINT",
    "ranks": "INTEGER",
    "registrations": "BIGINT",
    "count": "BIGINT",
    "reason": "VARCHAR",
    "advice": "VARCHAR",
    "segments": "BIGINT",
    "bytes": "UBIGINT",
    "differences": "BIGINT",
    "only_in": "VARCHAR",
    "pool": "BIGINT",
    "pool_bytes": "UBIGINT",
    "ordinal": "BIGINT",
    "capturing": "BOOLEAN",
    "wanted": "UBIGINT",
    "held": "UBIGINT",
    "entries": "BIGINT",
    "missing_rank": "INTEGER",
    "operation": "VARCHAR",
    "send_window": "VARCHAR",
    "send_offset": "UBIGINT",
    "receive_window": "VARCHAR",
    "receive_offset": "UBIGINT",
    "uses": "UBIGINT",
    "digest": "VARCHAR",
    "choice": "BIGINT",
    "answer": "VARCHAR",
    "peer": "INTEGER",
    "life": "VARCHAR",
    "peer_life": "VARCHAR",
    "peer_segment": "BIGINT",
    "peer_pool_segment": "BIGINT",
    "generation": "BIGINT",
    "handle": "VARCHAR",
    "dropped": "BIGINT",
    "communicators": "BIGINT",
}

# Of trace.begin, in table ``process``.
BEGIN: Final = (
    "schema",
    "tracehook",
    "torch",
    "cuda",
    "nccl",
    "python",
    "host",
    "allocator",
    "policy",
    "emulated",
    "argv",
)
