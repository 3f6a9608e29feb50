"""What ``tracehook.status()`` takes from the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracehook.log.tables import KINDS

if TYPE_CHECKING:
    from tracehook._core import Totals


def nothing() -> dict[str, Any]:
    """Return the answer of a process in which nothing runs."""
    return {
        "state": "off",
        "reasons": {},
        "segments": 0,
        "bytes": 0,
        "memory": {"source": "torch", "segments": 0, "bytes": 0, "refused": 0, "set_for_nccl": {}},
        "left_out": {"segments": 0, "bytes": 0, "why": "", "by": {}},
        "asleep": {"segments": 0, "bytes": 0},
        "expandable_bytes": 0,
        "communicators": [],
        "dropped": 0,
        "log": None,
        "nccl": 0,
        "hook_library": "",
        "pools": [],
        "windows": [],
        "scopes": [],
    }


def of_core(core: Any) -> dict[str, Any]:
    """Return what the native core counts, and what NCCL says of its memory. Makes no other call into CUDA or NCCL."""
    held: Totals = core.totals()
    return {
        "segments": held.segments,
        "bytes": held.bytes,
        "expandable_bytes": sum(size for _, _, size in core.mapped()),
        "communicators": [
            {**row, "key": f"{row['key']:016x}", "local": KINDS[row["local"]]} for row in core.communicators(True)
        ],
        "dropped": core.dropped(),
        "nccl": core.nccl_version(),
        "hook_library": core.hook_library_version(),
    }
