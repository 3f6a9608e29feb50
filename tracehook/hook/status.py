"""What :func:`tracehook.status` returns: the names and types of its answer, and what of it the native core tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tracehook.log.tables import KINDS

if TYPE_CHECKING:
    from tracehook._core import Totals


class LibraryMemoryStatus(TypedDict):
    """Bytes of the device that NCCL holds for a communicator. `suspended`: it gave them back until it is resumed."""

    suspendable: int
    suspended: int
    persistent: int


class CommunicatorStatus(TypedDict):
    """One live communicator."""

    id: int
    key: str
    pointer: int
    device: int
    rank: int
    size: int
    ready: bool
    failed: int
    suspended: bool
    memory: LibraryMemoryStatus | None
    held: int
    made: int
    undone: int
    in_effect: int
    in_vain: int
    at_calls: bool
    one_host: bool
    spared: int
    device_communicators: int
    local: str
    segments_since_ns: int
    windows_since_ns: int


class MemoryStatus(TypedDict):
    """Where segments come from. `source`: ``torch`` or ``vmm``; the rest is of ``vmm``. Sizes in bytes.

    `set_for_nccl`: environment variables that tracehook set, because the process had none.
    """

    source: str
    segments: int
    bytes: int
    refused: int
    set_for_nccl: dict[str, str]


class LeftOutStatus(TypedDict):
    """Segments that nobody registers, because NCCL could not use it, or a rule says so. Sizes in bytes."""

    segments: int
    bytes: int
    why: str
    by: dict[str, AsleepStatus]


class PoolStatus(TypedDict):
    """One pool of symmetric memory on one device. Sizes in bytes."""

    pool: str
    device: int
    segments: int
    bytes: int
    retired_bytes: int


class WindowsStatus(TypedDict):
    """The windows of one group. `refused`: a code, if the group gets none."""

    group: str
    windows: int
    bytes: int
    pinned: int
    deferred: int
    refused: str | None


class ScopeStatus(TypedDict):
    """One thread that is in a scope. `depth`: in how many scopes of the pool, one inside the other."""

    group: str
    pool: str
    device: int
    thread: str
    depth: int
    seconds: float


class AsleepStatus(TypedDict):
    """Segments that torch keeps and that have no memory now."""

    segments: int
    bytes: int


class Status(TypedDict):
    """What tracehook does in this process. Sizes in bytes."""

    state: Literal["off", "waiting", "on", "recording", "unsupported", "forked"]
    reasons: dict[str, str]
    segments: int
    bytes: int
    expandable_bytes: int
    memory: MemoryStatus
    left_out: LeftOutStatus
    asleep: AsleepStatus
    communicators: list[CommunicatorStatus]
    dropped: int
    log: str | None
    nccl: int
    hook_library: str
    pools: list[PoolStatus]
    windows: list[WindowsStatus]
    scopes: list[ScopeStatus]


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
