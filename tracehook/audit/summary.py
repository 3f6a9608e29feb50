"""Count what a job did, per process: segments, communicators, registrations made, undone and left."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracehook.audit.reader import ProcessLog


@dataclass
class Summary:
    """Counts of one process. `left` are registrations of communicators that were alive at the last event."""

    rank: int | None
    pid: int
    ended: bool = False
    recovered: int = 0
    lost: int = 0
    segments: int = 0
    segments_freed: int = 0
    communicators: int = 0
    destroyed: int = 0
    aborted: int = 0
    made: int = 0
    undone: int = 0
    dropped_at_abort: int = 0
    failures: int = 0
    warnings: int = 0
    _held: dict[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Registrations that were neither undone nor dropped with their communicator."""
        return sum(self._held.values())


def summarise(log: ProcessLog) -> Summary:
    """Count the events of `log`."""
    pid = log.begin.get("pid")
    out = Summary(log.rank, pid if isinstance(pid, int) else 0, log.ended, log.recovered, log.dropped)
    for event in log.events:
        comm = event.get("comm_id", 0)
        match event["event"]:
            case "segment.alloc" | "segment.adopt":
                out.segments += 1
            case "segment.free":
                out.segments_freed += 1
            case "communicator.pending":
                out.communicators += 1
                out._held[comm] = 0
            case "communicator.retire":
                out.destroyed += 1
            case "communicator.abort":
                out.aborted += 1
                out.dropped_at_abort += out._held.pop(comm, 0)
            case "register.local":
                if event.get("ok"):
                    out.made += 1
                    out._held[comm] = out._held.get(comm, 0) + 1
                else:
                    out.failures += 1
            case "deregister.local":
                if event.get("ok"):
                    out.undone += 1
                    out._held[comm] = out._held.get(comm, 0) - 1
                else:
                    out.failures += 1
            case "hook.unsupported" | "hook.conflict" | "ledger.difference" | "segment.unknown" | "log.dropped":
                out.warnings += 1
            case _:
                pass
    return out
