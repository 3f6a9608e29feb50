"""What :func:`tracehook.status` returns: the names and types of its answer, and how a notebook shows it."""

from __future__ import annotations

from html import escape
from typing import Any, Literal, TypedDict


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
    held: int
    made: int
    undone: int
    in_effect: int
    in_vain: int
    at_calls: bool
    one_host: bool
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
    """Segments that nobody registers, because NCCL could not use it. Sizes in bytes."""

    segments: int
    bytes: int
    why: str


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


class Status(TypedDict):
    """What tracehook does in this process. Sizes in bytes."""

    state: Literal["off", "waiting", "on", "recording", "unsupported", "forked"]
    reasons: dict[str, str]
    segments: int
    bytes: int
    expandable_bytes: int
    memory: MemoryStatus
    left_out: LeftOutStatus
    communicators: list[CommunicatorStatus]
    dropped: int
    log: str | None
    nccl: int
    hook_library: str
    pools: list[PoolStatus]
    windows: list[WindowsStatus]
    scopes: list[ScopeStatus]


class Shown(dict[str, Any]):
    """A dict that a notebook shows as tables."""

    def _repr_html_(self) -> str:
        lists = {name: value for name, value in self.items() if isinstance(value, list) and value}
        single = {name: value for name, value in self.items() if not isinstance(value, list)}
        single["reasons"] = "; ".join(f"{name}: {advice}" for name, advice in self.get("reasons", {}).items())
        parts = [_table(["", ""], [[name, value] for name, value in single.items()])]
        for name, rows in lists.items():
            parts.append(f"<p>{escape(name)}</p>{_table(list(rows[0]), [list(row.values()) for row in rows])}")
        return "".join(parts)


def _table(names: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
