"""The fields of the log that the audit reads, from cpp/events/fields.def: one column of table ``event`` each.

A newer minor schema may have more; those are left unread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tracehook.log.tables import ABOUT, rows


class Field(NamedTuple):
    """What the table says of a field, besides its name."""

    sql_type: str
    meaning: str
    is_common: bool  # any event may have it


_OWN: Final = {name: sql_type for about in ABOUT.values() for name, sql_type in about.fields.items()}

# Of every event.
TABLE: Final = {
    name: Field("".join(kind) or _OWN[name], meaning, macro == "COMMON")
    for macro, name, *kind, meaning in rows("events/fields.def")
}
FIELDS: Final = {name: field.sql_type for name, field in TABLE.items()}

# Of trace.begin, in table ``process``.
BEGIN: Final = (
    *("schema", "tracehook", "torch", "cuda", "nccl", "python", "host", "allocator", "policy", "local", "local_min"),
    *("segments", "leaves_out", "segment_memory", "guard", "integrations", "machine", "driver", "infiniband"),
    *("nccl_settings", "emulated", "argv", "program"),
)
