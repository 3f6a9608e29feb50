"""What comparing and confirming take where all ranks share a host: with the mailbox of the host, or at the store alone.

``python benchmarks/one_host.py RANKS``, without NCCL and without devices: a process for each rank, and one that has
the TCPStore. Each repetition is one comparison and one confirmation, with the mailbox and without in turn. Before
each all processes sleep, as long as NCCL takes to make a window, and begin at one moment of the clock. A time is that
of the slowest rank, from that moment on.
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

from tracehook.agreement import mailbox
from tracehook.agreement.agreement import Agreement

REPETITIONS = 101
WARM_UP = 20
TIMEOUT = 60.0  # seconds
TOPIC, ENTRIES = "register windows", ["12582912 bytes"]
LINES = [
    stats.Line("mailbox", "compare + confirm: with the mailbox", "ms", 1.5),
    stats.Line("store", "compare + confirm: at the store alone", "ms"),
    stats.Line("ratio", "  mailbox / store", "x"),
]


def attend(port: int, rank: int, ranks: int, begin: float, period: float, results: Any) -> None:
    """Make the rounds of one rank; hand over when each pair ended, in ms after its moment."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    members = {
        "mailbox": Agreement(store, "mailbox", rank, ranks, "communicator", host=mailbox.shared_memory_domain()),
        "store": Agreement(store, "store", rank, ranks, "communicator"),
    }
    times: dict[str, list[float]] = {name: [] for name in members}
    moment = begin
    for _ in range(WARM_UP + REPETITIONS):
        for name, member in members.items():
            moment += period
            time.sleep(max(0.0, moment - time.monotonic()))
            member.compare(TOPIC, ENTRIES, TIMEOUT)
            member.confirm(TOPIC, "", TIMEOUT)
            times[name].append((time.monotonic() - moment) * 1e3)
    results.put({name: values[WARM_UP:] for name, values in times.items()})


def main(arguments: list[str]) -> None:
    """Start the processes, and print what they found."""
    parser = argparse.ArgumentParser(description="time comparisons of ranks that share a host")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--period", type=float, default=0.02, help="seconds from one repetition to the next")
    chosen = parser.parse_args(arguments)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = get_context("spawn")
    results = context.Queue()
    begin = time.monotonic() + 10 + 2 * chosen.ranks
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
    slowest["ratio"] = [ours / theirs for ours, theirs in zip(slowest["mailbox"], slowest["store"], strict=True)]
    print(f"{chosen.ranks} ranks of one host, {os.cpu_count()} cores", flush=True)
    stats.show(LINES, slowest)


if __name__ == "__main__":
    main(sys.argv[1:])
