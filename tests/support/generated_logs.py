"""Logs of a job that never ran: as many ranks and events as a test wants, of the shape that a real job's have."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
_TENSOR_PARALLEL = 8
_SECOND = 1_000_000_000


@dataclass
class _Process:
    """One rank: counts what it says, and knows what it holds."""

    rank: int
    ranks: int
    lines: list[dict[str, Any]]
    t_ns: int
    chance: random.Random
    comms: dict[int, list[Any]] = field(default_factory=dict)  # comm_id: key, events so far, windows so far, rank in it
    live: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # segment: address, size, pool segment or 0
    idle: list[int] = field(default_factory=list)  # pool segments
    windows: dict[int, int] = field(default_factory=dict)  # pool segment: size
    pool_bytes: int = 0
    made: int = 0
    grown: int = 0

    def say(self, event: str, comm: int = 0, **fields: Any) -> None:
        line = {"event": event, "seq": len(self.lines), "t_ns": self.t_ns, "device": self.rank % _TENSOR_PARALLEL}
        if comm:
            self.comms[comm][1] += 1
            key, said, _, rank = self.comms[comm]
            line |= {"comm": key, "comm_id": comm, "comm_seq": said, "comm_rank": rank}
        self.lines.append(line | fields)
        self.t_ns += self.chance.randrange(1_000, 9_000)

    def call(self, event: str, comm: int, where: dict[str, Any], slow: float = 1.0) -> None:
        self.say(event, comm, **where, us=round(self.chance.lognormvariate(1.6, 0.7) * slow, 3), thread=1, ok=True)

    def place(self, name: str, number: int, address: str, size: int) -> dict[str, Any]:
        return {name: number, "addr": address, "size": size}

    def join(self, key: str, rank: int, size: int) -> None:
        """A new communicator: all live segments are registered with it at once."""
        comm = len(self.comms) + 1
        self.comms[comm] = [key, 0, 0, rank]
        self.say("communicator.pending", comm, ranks=size)
        self.say("communicator.ready", comm, ranks=size)
        for segment, (address, bytes_, _) in self.live.items():
            self.say("register.local", comm, **self.place("segment", segment, address, bytes_), thread=1, ok=True)
        if self.live:
            self.say("register.batch", comm, us=2.5 * len(self.live), thread=1, count=len(self.live))

    def alloc(self, size: int, pooled: bool) -> None:
        self.made += 1
        address, pool_segment = hex(0x7E0000000000 + (self.made << 33)), 0
        if pooled:
            reused = bool(self.idle)
            pool_segment = self.idle.pop() if reused else self.grown + 1
            address = hex(0x7A0000000000 + (pool_segment << 33))
            where = self.place("pool_segment", pool_segment, address, size)
            self.grown = max(self.grown, pool_segment)
            self.pool_bytes += 0 if reused else size
            self.say("segment.reuse" if reused else "pool.grow", **where, thread=1, pool=1, pool_bytes=self.pool_bytes)
        self.live[self.made] = (address, size, pool_segment)
        where = self.place("segment", self.made, address, size)
        self.say("segment.alloc", **where, thread=1, total=sum(held[1] for held in self.live.values()))
        for comm in self.comms:
            self.call("register.local", comm, where)
        if pooled and not reused:
            where = self.place("pool_segment", pool_segment, address, size)
            ordinal, self.comms[2][2] = self.comms[2][2], self.comms[2][2] + 1
            where |= {"pool": 1, "effective": True, "ordinal": ordinal}
            self.call("register.window", 2, where, slow=300)
            self.windows[pool_segment] = size

    def free(self, segment: int) -> None:
        address, size, pool_segment = self.live.pop(segment)
        where = self.place("segment", segment, address, size)
        for comm in self.comms:
            self.call("deregister.local", comm, where)
        self.say("segment.free", **where, thread=1, total=sum(held[1] for held in self.live.values()))
        if pool_segment:
            self.idle.append(pool_segment)
            where = self.place("pool_segment", pool_segment, address, size)
            self.say("segment.retire", **where, thread=1, pool=1, pool_bytes=self.pool_bytes)

    def end(self) -> None:
        for comm in self.comms:
            for segment, (address, size, _) in self.live.items():
                self.call("deregister.local", comm, self.place("segment", segment, address, size))
            for pool_segment, size in self.windows.items() if comm == 2 else ():
                address = hex(0x7A0000000000 + (pool_segment << 33))
                where = self.place("pool_segment", pool_segment, address, size)
                self.call("deregister.window", comm, where | {"pool": 1})
            self.say("communicator.retire", comm, thread=1, registrations=len(self.live))
        self.lines.append({"event": "trace.end", "t_ns": self.t_ns, "dropped": 0})


def write_job(directory: Path, ranks: int, events: int = 200, seconds: float = 60, **begin: Any) -> None:
    """Write one log a rank, of about `events` events. The last rank holds more than the others; rank 1 was killed."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        process = _Process(rank, ranks, [_begin(rank, ranks) | begin], 10 * _SECOND, random.Random(rank))
        _live(process, events, int(seconds * _SECOND))
        name = f"generated.rank{rank}.host{rank // _TENSOR_PARALLEL}.{1000 + rank}.jsonl"
        lines = (json.dumps(line, separators=(",", ":")) for line in process.lines)
        directory.joinpath(name).write_text("\n".join(lines) + "\n")


def _begin(rank: int, ranks: int) -> dict[str, Any]:
    versions = {"schema": "1.2", "tracehook": "0.1.0", "torch": "2.11.0", "cuda": "13.0", "nccl": 22809}
    where = {"host": f"host{rank // _TENSOR_PARALLEL}", "pid": 1000 + rank, "rank": rank, "world_size": ranks}
    job = {"job": "generated", "attempt": 0, "argv": ["train.py"], "policy": ["shared"], "emulated": False}
    when = {"t_ns": 10 * _SECOND, "time": "2026-11-21T12:00:00+00:00"}
    return {"event": "trace.begin", **when, **versions, "python": "3.12.1", "allocator": "", **where, **job}


def _live(process: _Process, events: int, duration: int) -> None:
    rank, ranks, schedule = process.rank, process.ranks, random.Random(1)
    greedy = 2 if ranks > 2 and rank == ranks - 1 else 1
    process.say("hook.enable", segments=0, bytes=0)
    process.say("hook.attach", segments=0, bytes=0)
    process.alloc(512 * MIB, pooled=False)
    group, member = divmod(rank, _TENSOR_PARALLEL)
    process.join(f"{0xA0:016x}", rank, ranks)
    process.join(f"{0xB00 + group:016x}", member, min(ranks, _TENSOR_PARALLEL))
    process.join(f"{0xC00 + member:016x}", group, max(1, ranks // _TENSOR_PARALLEL))
    process.say("policy.chosen", choice=0, answer="shared")
    started = process.t_ns
    while len(process.lines) < events - 3 * len(process.live) - 8:
        process.t_ns = max(process.t_ns, started + duration * len(process.lines) // events)
        if len(process.live) < schedule.choice((6, 12, 24)):
            pooled = schedule.random() < 0.25
            process.alloc(64 * MIB if pooled else schedule.choice((2, 20, 64, 256)) * MIB * greedy, pooled)
        else:
            process.free(schedule.choice(list(process.live)[1:]))
        if ranks > 1 and rank == 1 and len(process.lines) > events // 2:
            return
    process.end()
