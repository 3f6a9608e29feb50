"""What comparing and confirming take over one real TCPStore: two rounds of an agreement.

``python benchmarks/rounds.py RANKS``, without NCCL and without devices: a process for each rank, and one that has
the TCPStore. Each repetition is one comparison and one confirmation. Before each all processes sleep, as long as NCCL
takes to make a window, and begin at one moment of the clock. A time is that of the slowest rank, from that moment on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing import get_context
from typing import Any

import stats
import torch.distributed as dist

from tracehook.agreement.agreement import Agreement

REPETITIONS = 101
WARM_UP = 20
TIMEOUT = 60.0  # seconds
TOPIC, ENTRIES = "register windows", ["12582912 bytes"]
LINES = [
    stats.Line("both", "compare + confirm", "ms", 1.5),
    stats.Line("compare", "  of it the comparison", "ms"),
]


def attend(port: int, rank: int, ranks: int, begin: float, period: float, results: Any) -> None:
    """Make the rounds of one rank; hand over when each pair ended, in ms after its moment."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    member = Agreement(store, "windows", rank, ranks, "communicator")
    times: dict[str, list[float]] = {"both": [], "compare": []}
    for number in range(WARM_UP + REPETITIONS):
        moment = begin + number * period
        time.sleep(max(0.0, moment - time.monotonic()))
        member.compare(TOPIC, ENTRIES, TIMEOUT)
        times["compare"].append((time.monotonic() - moment) * 1e3)
        member.confirm(TOPIC, "", TIMEOUT)
        times["both"].append((time.monotonic() - moment) * 1e3)
    results.put({name: values[WARM_UP:] for name, values in times.items()})


def main(arguments: list[str]) -> None:
    """Start the processes, and print what they found."""
    parser = argparse.ArgumentParser(description="time comparisons of ranks that share a host")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--period", type=float, default=0.02, help="seconds from one repetition to the next")
    chosen = parser.parse_args(arguments)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = get_context("fork")
    results = context.Queue()
    begin = time.monotonic() + 3 + 0.1 * chosen.ranks
    members = [
        context.Process(target=attend, args=(store.port, rank, chosen.ranks, begin, chosen.period, results))
        for rank in range(chosen.ranks)
    ]
    for member in members:
        member.start()
    found = [results.get(timeout=TIMEOUT + 300) for _ in members]
    for member in members:
        member.join()
    slowest = {name: [max(values) for values in zip(*(one[name] for one in found), strict=True)] for name in found[0]}
    print(f"{chosen.ranks} ranks, {os.cpu_count()} cores", flush=True)
    stats.show(LINES, slowest)


if __name__ == "__main__":
    main(sys.argv[1:])
