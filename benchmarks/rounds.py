"""What one round of an agreement takes with many ranks over one real TCPStore, without NCCL and without devices.

``python benchmarks/rounds.py RANKS RANKS_PER_HOST``: a process for each host, forked from one that has imported torch,
with a connection of its own to the store. It is the speaker of its host: it makes the rounds as in a job. The posts of
its neighbours it writes to the host's mailbox itself, at the same time, because so many processes do not fit on one
machine; what they do with the verdict is not measured. All begin a round at one moment of the clock. The time of a
round is that from this moment until the last speaker has the verdict, so it includes how late the processes woke up;
that is shown beside it. With one rank a host there are no mailboxes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from multiprocessing import get_context
from typing import Any

import stats
import store_costs
import torch.distributed as dist

from tracehook.agreement.agreement import Agreement
from tracehook.agreement.mailbox import HostMailbox
from tracehook.agreement.topology import packed
from tracehook.agreement.verdicts import Post, RoundVerdict

ROUNDS = 21
WARM_UP = 3
TIMEOUT = 60.0  # seconds
TOPIC, ENTRIES = "register windows", ["segment 1, 2097152 bytes", "segment 2, 33554432 bytes"]
LINES = [
    stats.Line("round", "one round: from the moment until the last has it", "ms", 10),
    stats.Line("awake", "  until the last process is awake", "ms"),
    stats.Line("own", "  the slowest process's own time", "ms"),
    stats.Line("store", "  CPU of the store's process, mean of all rounds", "ms"),
]


def speak(port: int, ranks: int, per_host: int, host: int, begin: float, period: float, results: Any) -> None:
    """Make the rounds of one host; hand over when each began and ended, in ms after its moment."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    numbers = [rank // per_host for rank in range(ranks)]
    first = host * per_host
    member = Agreement(store, "benchmark", first, ranks, "communicator")
    if per_host > 1:
        member._learn(RoundVerdict("ok", shaken={"hosts": packed(numbers)}), 0)
    mine = range(first, first + per_host)
    others = [HostMailbox(f"{member.prefix}/0", mine, rank) for rank in mine[1:]]
    text = Post("compare", TOPIC, ENTRIES).written()
    times = []
    for number in range(1, WARM_UP + ROUNDS + 1):
        moment = begin + number * period
        time.sleep(max(0.0, moment - time.monotonic()))
        awake = time.monotonic()
        for mailbox in others:
            mailbox.post(number, text)
        member.compare(TOPIC, ENTRIES, TIMEOUT)
        times.append(((awake - moment) * 1e3, (time.monotonic() - moment) * 1e3))
    results.put(times[WARM_UP:])
    results.close()
    results.join_thread()
    os._exit(0)


def measure(ranks: int, per_host: int, period: float) -> stats.Results:
    """Make the rounds; return how long each took."""
    count = ranks // per_host
    context = get_context("fork")
    ports, results = context.Queue(), context.Queue()

    def serve() -> None:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ports.put(server.port)
        time.sleep(3600)

    server = context.Process(target=serve, daemon=True)
    server.start()
    port = ports.get()
    begin = time.monotonic() + 2 + count / 20
    given = (port, ranks, per_host)
    speakers = [context.Process(target=speak, args=(*given, host, begin, period, results)) for host in range(count)]
    for speaker in speakers:
        speaker.start()
    time.sleep(max(0.0, begin - time.monotonic()))
    before = store_costs.used(server.pid)
    times = [results.get(timeout=TIMEOUT + 300) for _ in speakers]
    store = (store_costs.used(server.pid) - before) / (WARM_UP + ROUNDS)
    for speaker in speakers:
        speaker.join()
    server.terminate()
    server.join()
    by_round = list(zip(*times, strict=True))
    found: stats.Results = defaultdict(list)
    found["store"].append(store * 1e3)
    for one in by_round:
        found["round"].append(max(end for _, end in one))
        found["awake"].append(max(awake for awake, _ in one))
        found["own"].append(max(end - awake for awake, end in one))
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="time rounds of an agreement over one TCPStore")
    parser.add_argument("ranks", type=int)
    parser.add_argument("per_host", type=int)
    parser.add_argument("--period", type=float, default=0.2, help="seconds from one round to the next")
    chosen = parser.parse_args(arguments)
    found = measure(chosen.ranks, chosen.per_host, chosen.period)
    print(f"{chosen.ranks} ranks on {chosen.ranks // chosen.per_host} hosts, {os.cpu_count()} cores", flush=True)
    stats.show(LINES, found)


if __name__ == "__main__":
    main(sys.argv[1:])
