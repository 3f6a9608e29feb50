"""The fields of the log that the audit reads, with their SQL types: one column of table ``event`` each.

They stand in cpp/events/fields.def. A newer minor schema may have more; those are left unread.
"""

from __future__ import annotations

from typing import Final

from tracehook.log import tables

# Of every event.
FIELDS: Final = {name: field.sql_type for name, field in tables.FIELDS.items()}

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
