"""Records of the ring as the native side makes them."""

from __future__ import annotations

import struct

from tracehook.log import records
from tracehook.log.tables import ABOUT, EVENTS

HEAD = struct.Struct("<4Q3I2iHh")  # written down a second time, so that the reader has a writer to agree with
NOTHING = {"size": records.NO_SIZE, "offset": records.NO_SIZE, "index": records.NO_INDEX}  # what stands for no value


def packed(event: str, **given: int) -> bytes:
    """Return the record of an event, or of a kind that the tables lack, with these members and no others."""
    kind = EVENTS.index(event) if event in EVENTS else int(event)
    head = dict.fromkeys(records.Record._fields[:-1], 0) | {"comm_rank": -1, "device": -1, "kind": kind}
    own = {name: NOTHING.get(kind, 0) for kind, name in ABOUT[event].parts("OWN")} if event in EVENTS else {}
    for name, value in given.items():
        (head if name in head else own)[name] = value
    layout = records.own_layout(event) if event in EVENTS else struct.Struct("")
    return HEAD.pack(*head.values()) + layout.pack(*own.values()).ljust(records.OWN_BYTES, b"\0")
