"""What it costs to register one new segment through a scope, beside SGLang's way, which calls NCCL at once.

``tracehook rehearse --devices 2 -- torchrun --standalone --nproc-per-node 2 benchmarks/agreement.py``, or without the
first part on GPUs. Both ways in turn, on the same communicator, with segments of one size; the ranks meet before each.
The time is that of the scope's end, of the slowest rank; the part that is NCCL's comes from tracehook's own events.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from typing import Any

import stats
import torch
import torch.distributed as dist
from others import leave, raw_communicator, sglang
from stats import Line

import tracehook
from tracehook.hook.service import service
from tracehook.log import records, tables

REPETITIONS = 51
WARM_UP = 5
SEGMENT = 12 << 20  # bytes; from 10 MiB on the allocator takes a segment for each tensor

LINES = [
    Line("tracehook", "end of a scope with one new segment: tracehook", "ms"),
    Line("sglang", "end of a scope with one new segment: SGLang", "ms"),
    Line("added", "  tracehook - SGLang", "ms", 1),
    Line("nccl", "  in tracehook's: ncclCommWindowRegister", "ms"),
    Line("agreement", "  in tracehook's: the ranks compare before it", "ms"),
    Line("rest", "  in tracehook's: all else, mostly the confirmation", "ms"),
]


class Events:
    """tracehook's events of this process, read by us: its own thread must not take them, nor compete for the GIL."""

    def __init__(self) -> None:
        from tracehook import _core

        self._core: Any = _core
        journal = service()._journal
        assert journal is not None
        journal.stop_thread()
        self.durations()

    def durations(self) -> dict[str, float]:
        """Take all events; return the milliseconds of those with a duration, summed by name."""
        found: dict[str, float] = defaultdict(float)
        while data := self._core.peek(4096):
            count = 0
            for record in records.unpack(data):
                found[tables.EVENTS[record.kind]] += record.duration_ns / 1e6
                count += 1
            self._core.mark_drained(count)
        return found


def end_of_scope(scope: Any, kept: list[torch.Tensor], device: torch.device, meeting: Any) -> float:
    """Return the milliseconds that the end of `scope` takes after one new segment."""
    scope.__enter__()
    kept.append(torch.empty(SEGMENT, dtype=torch.uint8, device=device))
    dist.all_reduce(torch.zeros(1), group=meeting)  # a barrier would allocate on the device, and in the scope
    begin = time.perf_counter_ns()
    scope.__exit__(None, None, None)
    return (time.perf_counter_ns() - begin) / 1e6


def slowest(values: list[float], meeting: Any) -> list[float]:
    """Return the largest of all ranks, for each value."""
    shared = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(shared, dist.ReduceOp.MAX, group=meeting)
    return shared.tolist()


def measure(device: torch.device) -> stats.Results:
    group: Any = dist.group.WORLD
    meeting = dist.new_group(backend="gloo")
    comm = raw_communicator(group, device)
    sglang.prepare(device.index)
    events = Events()
    kept: list[torch.Tensor] = []
    found: stats.Results = defaultdict(list)
    for repetition in range(WARM_UP + REPETITIONS):
        events.durations()
        ours = end_of_scope(tracehook.symmetric(group), kept, device, meeting)
        parts = events.durations()
        theirs = end_of_scope(sglang.use_symmetric_memory(comm), kept, device, meeting)
        assert tracehook.is_symmetric(kept[-2], group)
        nccl, agreement = parts["register.window"], parts["agreement.reached"]
        ours, theirs, nccl, agreement = slowest([ours, theirs, nccl, agreement], meeting)
        if repetition >= WARM_UP:
            values = (ours, theirs, ours - theirs, nccl, agreement, ours - nccl - agreement)
            for line, value in zip(LINES, values, strict=True):
                found[line.name].append(value)
    made = sglang.registered(comm), sglang.segments()[0]
    assert made == (WARM_UP + REPETITIONS,) * 2, made
    return found


def main(arguments: list[str]) -> None:
    os.environ.setdefault("SYMM_REGISTER_GUARD", "off")  # what is compared registers as without tracehook
    tracehook.enable()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    dist.all_reduce(torch.ones(4, device=device))
    found = measure(device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks", flush=True)
        stats.hand_over(found) if "--raw" in arguments else stats.show(LINES, found)
    leave()


if __name__ == "__main__":
    main(sys.argv[1:])
