"""What comparing in the background costs the store of a large job: CPU time for one period, and the readers' own time.

    python benchmarks/background.py [--hosts 128,512,2048] [--repeat 5]

The ranks of a host combine their samples in shared memory, so one rank of each host goes to the store. Here these are
the product's own `Verification` objects, one after the other over one connection, on a real TCPStore that another
process holds. Each period brings as many new calls as a sample can tell of. *Flat* is the same without shards: all
deal with rank 0. CPU time and not time that passes, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from store_costs import Server, used

from tracehook.symmetric_memory import levels, verification
from tracehook.symmetric_memory.part import Part, Seat
from tracehook.symmetric_memory.verification import PERIOD, Verification

CALLS = 9_000  # of a period: 6,000 a second


class Communicator:
    """A communicator whose ranks all do the same."""

    dead = False
    key = 1

    def __init__(self) -> None:
        self.calls = 0

    def digests(self, first: int, last: int) -> tuple[int, list[int]]:
        """Return digests as long as real ones."""
        found = range(max(first, self.calls - 16_384), min(last + 1, self.calls))
        return found.start, [(call + 1) * 0x9E3779B97F4A7C15 % 2**64 for call in found]


class Clock:
    """Seconds that go on only when told, so that no period has to be waited for."""

    now = 0.0

    def monotonic(self) -> float:
        """Return them."""
        return self.now


class Job:
    """One rank of each host."""

    def __init__(self, hosts: int, store: dist.Store, *, sharded: bool) -> None:
        self._store = store
        self._clock: Any = Clock()
        verification.time = self._clock  # type: ignore[attr-defined]
        prefix = uuid.uuid4().hex
        alone = [[rank] for rank in range(hosts)]
        self._communicators = [Communicator() for _ in range(hosts)]
        self._verifications = [
            Verification(
                self._communicators[rank],
                [Seat(Part(prefix, rank, hosts, "c", 0, levels=levels.seen_by(rank, alone) if sharded else None))],
                "c",
            )
            for rank in range(hosts)
        ]

    def period(self) -> list[float]:
        """Let all make calls, and look; return what each took of this process: seconds of CPU."""
        self._clock.now += PERIOD
        taken = []
        for communicator, each in zip(self._communicators, self._verifications, strict=True):
            communicator.calls += CALLS
            begin = time.process_time()
            if each.step(self._store) is not None:
                raise SystemExit("equal ranks raised an alarm")
            taken.append(time.process_time() - begin)
        return taken

    @property
    def verified(self) -> int:
        """Calls up to which rank 0 knows that all did the same."""
        return self._verifications[0]._same


def measured(hosts: int, repeat: int, *, sharded: bool) -> list[tuple[float, float]]:
    """Return, for each period, the CPU seconds of the store's process and of the rank that needs most."""
    server = Server()
    store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
    job = Job(hosts, store, sharded=sharded)
    for _ in range(3):  # until each level has heard of the one below
        job.period()
    found = []
    for _ in range(repeat):
        begin = used(server.process.pid)
        busiest = max(job.period())
        found.append((used(server.process.pid) - begin, busiest))
    if job.verified < 2 * CALLS:
        raise SystemExit(f"rank 0 knows of {job.verified} calls only")
    server.process.terminate()
    return found


def middle(values: Sequence[float]) -> str:
    """Return the median in milliseconds, with the least and the largest."""
    return f"{1e3 * statistics.median(values):7.1f} ms [{1e3 * min(values):.1f} .. {1e3 * max(values):.1f}]"


def main() -> None:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="128,512,2048")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for hosts in map(int, options.hosts.split(",")):
        for sharded in (False, True):
            found = measured(hosts, options.repeat, sharded=sharded)
            store, busiest = zip(*found, strict=True)
            share = statistics.median(store) / PERIOD
            print(
                f"{hosts:5} hosts, {'sharded' if sharded else 'flat':7}: store {middle(store)} a period, "
                f"{100 * share:.1f} % of a core; busiest rank {middle(busiest)}; n={len(found)}",
                flush=True,
            )


main()
