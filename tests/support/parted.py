"""A process whose events go into the parts of a log, without a device: what tests of bounded logs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracehook.log.bound import Bound
from tracehook.log.parts import Parts
from tracehook.log.reader import read_directory

_FIRST = {"event": "trace.begin", "schema": "1.14", "t_ns": 1, "time": "2026-11-24T06:00:00+00:00", "host": "h"}


SMALL = 4 << 20  # bytes


class Program:
    """It allocates, registers, deregisters and frees. One event a microsecond, from 06:00 UTC on."""

    def __init__(self, folder: Path, limit: int | None = SMALL, rank: int = 0, ranks: int = 1) -> None:
        self.folder = folder
        self.seq = 0
        self.rank = rank
        self.parts = Parts(folder / f"job.rank{rank}.h.{7 + rank}.jsonl", None, Bound(limit), self.clock)
        self.parts.begin(_FIRST | {"job": "job", "pid": 7 + rank, "rank": rank, "world_size": ranks})
        self.segments = 0

    def clock(self) -> int:
        """Return the time."""
        return 1000 * self.seq + 1

    def say(self, event: str, **fields: object) -> None:
        """Log an event of the ring."""
        self.seq += 1
        self._write(event, {"seq": self.seq, "t_ns": 1000 * self.seq, "device": self.rank, **fields})

    def say_aside(self, event: str, **fields: object) -> None:
        """Log a line without a number."""
        self._write(event, {"t_ns": 1000 * self.seq + 500, **fields})

    def _write(self, event: str, fields: dict[str, object]) -> None:
        self.parts.write(json.dumps({"event": event, **fields}).encode() + b"\n")
        self.parts.remember(event, fields)

    def join(self, comm: int, ranks: int = 2) -> None:
        """Get a communicator."""
        named = {"comm": f"{comm:016x}", "comm_id": comm, "comm_rank": self.rank, "ranks": ranks}
        self.say("communicator.pending", **named)
        self.say("communicator.ready", **named)

    def leave(self, comm: int) -> None:
        """End it."""
        self.say("communicator.retire", comm=f"{comm:016x}", comm_id=comm, comm_rank=self.rank)

    def alloc(self) -> int:
        """Allocate a segment, and register it with the communicator."""
        self.segments += 1
        self.say("segment.alloc", segment=self.segments, addr=hex(self.segments << 21), size=1 << 21, total=1)
        self.say("register.local", segment=self.segments, **self._of_it(self.segments))
        return self.segments

    def free(self, segment: int) -> None:
        """Deregister a segment, and free it."""
        self.say("deregister.local", segment=segment, **self._of_it(segment))
        self.say("segment.free", segment=segment, addr=hex(segment << 21), size=1 << 21, total=0)

    def _of_it(self, segment: int) -> dict[str, object]:
        place = {"addr": hex(segment << 21), "size": 1 << 21}
        return {"comm": f"{1:016x}", "comm_id": 1, "comm_rank": self.rank, "ok": True, "thread": 1, **place}

    def window(self, ordinal: int, size: int = 1 << 21) -> None:
        """Register a window with communicator 1."""
        at = {"addr": hex(ordinal << 30), "size": size}
        self.say("pool.grow", pool=1, pool_segment=ordinal + 1, pool_bytes=size, **at)
        named = {"comm": f"{1:016x}", "comm_id": 1, "comm_rank": self.rank, "pool_segment": ordinal + 1}
        self.say("register.window", **named, ok=True, pool=1, effective=True, ordinal=ordinal, **at)

    def end_window(self, ordinal: int) -> None:
        """Undo it, and give its memory back."""
        named = {"comm": f"{1:016x}", "comm_id": 1, "comm_rank": self.rank, "pool_segment": ordinal + 1}
        at = {"addr": hex(ordinal << 30), "size": 1 << 21}
        self.say("deregister.window", **named, ok=True, **at)
        self.say("pool.shrink", pool=1, pool_segment=ordinal + 1, pool_bytes=0, **at)

    def end(self) -> None:
        """Close the log in order."""
        self.say_aside("trace.end", dropped=0, segments=0, bytes=0, communicators=0)

    @property
    def bytes(self) -> int:
        """What all files take."""
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def read(self) -> list[dict[str, Any]]:
        """Return the events that are left."""
        (log,) = read_directory(self.folder)
        return log.events


def churn(program: Program, times: int) -> None:
    """Let segments come and go."""
    for _ in range(times):
        program.free(program.alloc())
