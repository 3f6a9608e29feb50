"""Count what a job did, per process: segments, communicators, registrations and windows made, undone and left."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracehook.audit.alive import lives
from tracehook.log import tables
from tracehook.log.file import rank_of
from tracehook.log.folders import own_host
from tracehook.log.lines import whole_number
from tracehook.log.reader import ProcessLog

_SIGNALS = {number.value for number in signal.Signals}
_ALERTS = tables.WARNINGS | tables.PROBLEMS


@dataclass
class RegistrationCounts:
    """Registrations of one kind, local ones or windows. `left` are those that nobody undid, of live communicators."""

    made: int = 0
    undone: int = 0
    dropped: int = 0
    by_communicator: dict[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Registrations that were neither undone nor dropped with their communicator."""
        return sum(self.by_communicator.values())

    def add(self, comm: int, made: bool) -> None:
        """Count one that was made, or undone."""
        self.made += made
        self.undone += not made
        self.by_communicator[comm] = self.by_communicator.get(comm, 0) + (1 if made else -1)

    def as_json(self) -> dict[str, int]:
        """Return it as ``--json`` prints it."""
        return {"made": self.made, "undone": self.undone, "dropped": self.dropped, "left": self.left}

    def drop_communicator(self, comm: int) -> None:
        """Count those of a communicator that took them with it: they went without a call."""
        self.dropped += self.by_communicator.pop(comm, 0)


@dataclass
class Summary:
    """Counts of one process.

    `failures` are calls into NCCL that it refused. `warnings` are events of a severity that the table of events gives:
    warnings, and problems that the program was told of in another way. `expandable` is the most that was mapped of
    expandable segments at any moment, in bytes: they are no segments here, and are never registered. `in_effect` are
    local registrations that NCCL was seen to use, `in_vain` those that it cannot use, `unmappable` segments of whose
    memory it can use none. `status` is the exit status as far as Python said it, `raised` whether an exception ended
    it, `exited` whether it called ``os._exit``, or another program took its place. `end` says how the
    process ended: see :func:`end_of`.
    """

    rank: int | None
    pid: int
    ended: bool = False
    end: str = "open"
    status: int = 0
    raised: bool = False
    exited: bool = False
    recovered: int = 0
    lost: int = 0
    segments: int = 0
    segments_freed: int = 0
    expandable: int = 0
    communicators: int = 0
    destroyed: int = 0
    aborted: int = 0
    failures: int = 0
    warnings: int = 0
    in_effect: int = 0
    in_vain: int = 0
    unmappable: int = 0
    registers_at_calls: bool = False
    local: RegistrationCounts = field(default_factory=RegistrationCounts)
    windows: RegistrationCounts = field(default_factory=RegistrationCounts)

    @property
    def is_busy(self) -> bool:
        """Whether it did anything that is counted here."""
        return bool(self.segments or self.expandable or self.communicators)

    @property
    def left_out(self) -> int:
        """Segments that nobody registered, because NCCL could not use it."""
        return self.unmappable if self.registers_at_calls else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it (docs/audit.md)."""
        names = ("rank", "pid", "ended", "end", "recovered", "lost", "segments", "segments_freed")
        more = ("communicators", "destroyed", "aborted", "failures", "warnings")
        return {
            **{name: getattr(self, name) for name in (*names, *more)},
            "expandable_bytes": self.expandable,
            "in_effect": self.in_effect,
            "in_vain": self.in_vain,
            "left_out": self.left_out,
            "registrations": self.local.as_json(),
            "windows": self.windows.as_json(),
        }

    def count(self, event: dict[str, Any]) -> None:
        """Count one event."""
        name = event["event"]
        if name in _ALERTS:
            self.warnings += 1
        number = event.get("comm_id")
        comm = number if isinstance(number, int) else 0
        match name:  # what logs are full of comes first
            case "register.local" | "deregister.local":
                self._call(self.local, name, comm, event.get("ok"))
                self.in_vain += event.get("expected") == "none"
            case "segment.alloc" | "segment.adopt":
                self.segments += 1
                self.unmappable += event.get("memory_kind") in ("cudaMalloc", "private")
            case "segment.free":
                self.segments_freed += 1
            case "rank.known" if self.rank is None:
                self.rank = rank_of(event)
            case "log.summed":
                self._add_passed(event)
            case "range.map":
                total = event.get("total")
                self.expandable = max(self.expandable, total if isinstance(total, int) else 0)
            case "register.used":
                self.in_effect += 1
            case "communicator.pending":
                self.communicators += 1
                inside = bool(event.get("at_calls") and event.get("one_host"))
                self.registers_at_calls |= inside and event.get("ranks") != 1
            case "communicator.retire":
                self.destroyed += 1
            case "communicator.abort":
                self.aborted += 1
                self.local.drop_communicator(comm)
                self.windows.drop_communicator(comm)
            case "trace.end" | "python.exit" | "python.exception":
                self.exited |= name == "python.exit"
                self.raised |= name == "python.exception" or event.get("how") == "exception"
                self.status = whole_number(event.get("status")) or self.status
            case "communicator.graphs":
                self.windows.drop_communicator(comm)  # NCCL ends them, in the call that follows
            case "register.window" if event.get("ok") and not event.get("effective", True):
                pass  # NCCL took it and gave no window: nothing is held
            case "register.window" | "deregister.window":
                self._call(self.windows, name, comm, event.get("ok"))
            case _:
                pass

    def _add_passed(self, event: dict[str, Any]) -> None:
        segments, registrations = (whole_number(event.get(name)) or 0 for name in ("segments", "registrations"))
        self.segments += segments
        self.segments_freed += segments
        self.local.made += registrations
        self.local.undone += registrations

    def _call(self, counts: RegistrationCounts, name: str, comm: int, ok: object) -> None:
        if not ok:
            self.failures += 1
        else:
            counts.add(comm, name.startswith("register."))


def summarise(log: ProcessLog) -> Summary:
    """Count the events of `log`."""
    out = Summary(
        log.rank, whole_number(log.begin.get("pid")) or 0, log.ended, recovered=log.recovered, lost=log.dropped
    )
    for event in log.events:
        out.count(event)
    out.end = end_of(out, log)
    return out


def end_of(counts: Summary, log: ProcessLog) -> str:
    """Say how a process ended, in a word or two.

    ``raised``: by an exception; ``exit 3``: with that status; ``ended``: in order, or by ``os._exit`` with status 0;
    ``SIGTERM``: by that signal; ``runs``: not yet; ``killed``: without a word, as by SIGKILL; ``open``: nobody knows.
    """
    if counts.raised:
        return "raised"
    if counts.status:
        return f"exit {counts.status}"
    if counts.ended or counts.exited:
        return "ended"
    if log.signal:
        return signal.Signals(log.signal).name if log.signal in _SIGNALS else f"signal {log.signal}"
    if log.begin.get("host") != own_host():
        return "killed" if log.has_ring else "open"
    return "runs" if lives(log.begin, log.epoch_ns) else "killed"


def launchers(rows: Sequence[Summary]) -> set[int]:
    """Return which rows are of launchers and helpers: processes that did nothing, and have no rank of their own.

    None are if nobody did anything.
    """
    ranks = {row.rank for row in rows if row.is_busy} | {None}
    found = {number for number, row in enumerate(rows) if not row.is_busy and row.rank in ranks}
    return found if len(found) < len(rows) else set()
