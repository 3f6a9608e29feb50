"""What a round of an agreement costs 1,024 to 16,384 ranks over one TCPStore: a simulation with costs measured here.

``python benchmarks/agreement_simulation.py``, and with ``--validate`` real rounds of 8 to 128 processes beside what the
simulation says of them. What is simulated are the code's own steps (``rounds.attend``) of every rank that goes to the
store. The store serves one operation after the other. docs/scale.md states what is assumed.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rounds as real
import store_costs
from store_costs import Costs

from tracehook.symmetric_memory import levels, rounds
from tracehook.symmetric_memory.hosts import Hosts
from tracehook.symmetric_memory.lines import LONGEST_POLL_INTERVAL
from tracehook.symmetric_memory.part import Part
from tracehook.symmetric_memory.rounds import Operation
from tracehook.symmetric_memory.verdicts import Post, RoundVerdict

SIZES = (1024, 4096, 16384)
PER_HOST = 8
REPETITIONS = 3
PREFIX = "tracehook/0123456789abcdef0123456789abcdef/0123456789abcdef/windows/1"
LOOPBACK = 15e-6  # seconds of one way inside this machine, besides the CPU
ROUND = 2  # its number; keys of the round before are removed after it


class Found(NamedTuple):
    """One simulated round."""

    seconds: float  # until the last rank has the verdict
    busy: float  # seconds of CPU of the store's process, with what comes after the verdict
    operations: int  # at the store, with what comes after the verdict
    readers: int  # most of one key
    leader: float  # seconds of CPU of the leader's own steps


class Speaker:
    """One rank that goes to the store, or waits on its board for one that does."""

    def __init__(self, part: Part, post: Post) -> None:
        self.part = part
        self.steps = rounds.attend(part, ROUND, post)
        self.text = json.dumps(post)
        self.own = 0.0
        self.is_on_line = False  # and not on the program's thread any more

    def next(self, answer: Any) -> tuple[Operation | None, float]:
        """Make the steps up to the next operation; return it, or None at the end, and the seconds that this took."""
        begin = time.thread_time()
        try:
            wanted: Operation | None = self.steps.send(answer)
        except StopIteration as end:
            verdict: RoundVerdict = end.value
            assert verdict.kind == "ok", verdict
            wanted = None
        taken = time.thread_time() - begin
        self.own += taken
        return wanted, taken


class Simulation:
    """One round. Times are in seconds; `latency` is that of one way; `cores` of a machine that all share, or 0."""

    def __init__(self, costs: Costs, latency: float, bandwidth: float, spread: float, cores: int, seed: int) -> None:
        self.costs = costs
        self.latency = latency
        self.bandwidth = bandwidth
        self.spread = spread
        self.random = random.Random(seed)
        self.cores = [0.0] * cores
        self.store: dict[str, str] = {}
        self.waiting: dict[str, list[tuple[Speaker, Callable[[float], None]]]] = {}
        self.readers: dict[str, set[int]] = {}
        self.free = 0.0  # when the store has served all that has come
        self.busy = 0.0
        self.counts: Counter[str] = Counter()
        self.last = 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, what: Callable[[float], None]) -> None:
        """Have something happen at that time."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def compute(self, now: float, seconds: float) -> float:
        """Return when a process has used so much CPU: at once if it has cores of its own."""
        if not self.cores:
            return now + seconds
        begin = max(now, heapq.heappop(self.cores))
        heapq.heappush(self.cores, begin + seconds)
        return begin + seconds

    def serve(self, now: float, seconds: float, size: int = 0) -> float:
        """Return when the store has done so much more work."""
        self.busy += seconds
        self.free = self.compute(max(now, self.free), seconds + size / self.bandwidth)
        return self.free

    def run(self, speakers: Sequence[Speaker]) -> Found:
        """Let all come, and go on until nothing happens any more."""
        for speaker in speakers:
            self.at(self.random.random() * self.spread, functools.partial(self.go_on, speaker, None))
        while self._events:
            when, _, what = heapq.heappop(self._events)
            what(when)
        readers = max(map(len, self.readers.values()))
        return Found(self.last, self.busy, sum(self.counts.values()), readers, speakers[0].own)

    def go_on(self, speaker: Speaker, answer: Any, now: float) -> None:
        """Make the steps up to the next operation, and that operation."""
        wanted, taken = speaker.next(answer)
        now = self.compute(now, taken)
        if wanted is None:
            self.last = max(self.last, now)
            self.clean(speaker, now)
        elif wanted.name in ("post", "gather", "speak", "publish"):
            texts = dict.fromkeys(speaker.part.hosts.neighbours, speaker.text) if wanted.name == "gather" else None
            now = self.compute(now, self.costs.board * max(1, len(texts or ())))
            self.at(now, lambda then: self.go_on(speaker, texts, then))
        else:
            handover = 0.0 if speaker.is_on_line else self.costs.handover
            speaker.is_on_line = True
            self.ask(speaker, wanted, self.compute(now, self.costs.client + handover))

    def ask(self, speaker: Speaker, wanted: Operation, now: float) -> None:
        """Send an operation to the store; the steps go on with the answer."""
        there = now + self.latency

        def answer(value: Any) -> Callable[[float], None]:
            return lambda then: self.at(then + self.latency, lambda back: self.go_on(speaker, value, back))

        match wanted:
            case Operation("set", (key, value)):
                self.at(there, lambda then: self.write(key, value, then, self.costs.set))
                self.at(now, lambda then: self.go_on(speaker, None, then))  # nobody answers a set
            case Operation("check", (keys,)):
                self.at(there, lambda then: self.check(speaker, keys, then, lambda end, yes: answer(yes)(end)))
            case Operation("claim", (key, value)):

                def claim(then: float) -> None:
                    self.note(speaker, [key])
                    stands = self.store.get(key)
                    if stands is None:
                        end = self.write(key, value, then, self.costs.claim)
                    else:
                        end = self.serve(then, self.costs.claim + self.costs.byte * len(stands), len(stands))
                    self.counts["claim"] += stands is not None
                    answer(self.store[key].encode())(end)

                self.at(there, claim)
            case Operation("read", (keys,)):

                def read(then: float) -> None:
                    self.note(speaker, keys)
                    values = [self.store[key].encode() for key in keys]
                    size = sum(map(len, values))
                    self.counts["read"] += 1
                    more = 2 * self.costs.key * (len(keys) - 1) + self.costs.byte * size
                    answer(values)(self.serve(then, self.costs.read + more, size))

                self.wait(speaker, keys, there, lambda then: self.at(then + 2 * self.latency, read))
            case Operation("peek", (key,)):

                def peek(then: float) -> None:
                    self.note(speaker, [key])
                    self.counts["peek"] += 1
                    value = self.store.get(key, "")
                    answer(value.encode())(self.serve(then, self.costs.claim, len(value)))

                self.at(there, peek)
            case Operation("wait", (keys,)):
                self.wait(speaker, keys, there, answer(True))
            case Operation("wait", (keys, verdict_key)):
                self.poll(speaker, keys, verdict_key, now, now)
            case _:
                raise AssertionError(wanted)

    def write(self, key: str, value: str, now: float, seconds: float) -> float:
        """Let a value stand; wake all who wait for it, one after the other."""
        self.store[key] = value
        self.counts["write"] += 1
        end = self.serve(now, seconds + self.costs.byte * len(value), len(value))
        for _, wake in self.waiting.pop(key, ()):
            wake(self.serve(now, self.costs.wake))
        return end

    def check(self, speaker: Speaker, keys: Sequence[str], now: float, then: Callable[[float, bool], None]) -> None:
        """Tell whether all keys are there."""
        self.note(speaker, keys)
        self.counts["check"] += 1
        there = all(key in self.store for key in keys)
        size = sum(map(len, keys))
        then(self.serve(now, self.costs.check + self.costs.key * (len(keys) - 1), size), there)

    def wait(self, speaker: Speaker, keys: Sequence[str], now: float, then: Callable[[float], None]) -> None:
        """Have the store answer when all keys are there; `now` is when the request comes there."""

        def come(when: float) -> None:
            self.note(speaker, keys)
            self.counts["wait"] += 1
            end = self.serve(when, self.costs.wait + self.costs.key * (len(keys) - 1), sum(map(len, keys)))
            absent = [key for key in keys if key not in self.store]
            assert len(absent) <= 1
            if absent:
                self.waiting.setdefault(absent[0], []).append((speaker, then))
            else:
                then(end)

        self.at(now, come)

    def poll(self, speaker: Speaker, keys: Sequence[str], verdict_key: str, began: float, now: float) -> None:
        """Ask again and again, as a line does."""

        def heard(end: float, there: bool) -> None:
            back = end + self.latency
            if there:
                self.at(back, lambda then: self.go_on(speaker, True, then))
            else:
                self.at(back + self.latency, lambda then: self.check(speaker, [verdict_key], then, again))

        def again(end: float, there: bool) -> None:
            assert not there
            back = self.compute(end + self.latency, 2 * self.costs.client)
            pause = min(LONGEST_POLL_INTERVAL, (back - began) / 8)
            self.at(back + pause, lambda then: self.poll(speaker, keys, verdict_key, began, then))

        self.at(now + self.latency, lambda then: self.check(speaker, keys, then, heard))

    def clean(self, speaker: Speaker, now: float) -> None:
        """Remove this rank's keys of the round before, one after the other."""
        for turn in range(3 if speaker.part.collects else 1):
            self.counts["delete"] += 1
            wait = turn * (2 * self.latency + self.costs.delete)
            self.at(now + wait + self.latency, self.remove)

    def remove(self, now: float) -> None:
        """Remove a key."""
        self.serve(now, self.costs.delete)

    def note(self, speaker: Speaker, keys: Sequence[str]) -> None:
        """Take note of who asks for keys."""
        for key in keys:
            self.readers.setdefault(key, set()).add(speaker.part.rank)


def speakers(ranks: int, per_host: int, shards: bool, first: bool = False) -> list[Speaker]:
    """Return the ranks that go to the store in a round. `first`: they still name their hosts."""
    hosts = [list(range(at, at + per_host)) for at in range(0, ranks, per_host)]
    made: list[Speaker] = []
    cut: levels.Levels | None = None
    for number, neighbours in enumerate(hosts):
        if shards and number % levels.MOST == 0:
            cut = levels.seen_by(neighbours[0], hosts)  # one for all of a shard
        seen = Hosts([each[0] for each in hosts], neighbours) if per_host > 1 else Hosts()
        seen = made[0].part.hosts._replace(neighbours=seen.neighbours) if made else seen
        part = Part(PREFIX, neighbours[0], ranks, "communicator", 60.0, seen, levels=cut)
        host = f"{neighbours[0] // PER_HOST:016x}" if first else ""
        made.append(Speaker(part, Post("compare", real.TOPIC, real.ENTRIES, (41, 1), host)))
    return made


WAYS = {
    "each rank for itself": (1, False, False),
    "one rank of each host": (PER_HOST, False, False),
    "one rank of each host, in shards": (PER_HOST, True, False),
    "first round: each rank for itself": (1, False, True),
    "first round: each rank, in shards": (1, True, True),
}


def simulate(chosen: argparse.Namespace, costs: Costs) -> None:
    """Print what a round costs jobs of all sizes."""
    print("| ranks | who goes to the store | until the last has the verdict | store busy | operations | "
          "most readers of a key | leader's own |\n|---:|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for ranks, (way, (per_host, shards, first)) in itertools.product(chosen.ranks, WAYS.items()):
        found = []
        for seed in range(REPETITIONS):
            round_ = Simulation(costs, chosen.latency * 1e-6, chosen.gigabits * 1e9 / 8, chosen.spread * 1e-3, 0, seed)
            found.append(round_.run(speakers(ranks, per_host, shards, first)))
        last, busy, leader = (
            statistics.median(getattr(one, name) for one in found) * 1e3 for name in ("seconds", "busy", "leader")
        )
        print(f"| {ranks:,} | {way} | {last:.1f} ms | {busy:.1f} ms | {found[0].operations:,} | "
              f"{found[0].readers:,} | {leader:.1f} ms |", flush=True)  # fmt: skip


def validate(chosen: argparse.Namespace, costs: Costs) -> None:
    """Print what real rounds took here, and what the simulation says of them."""
    cores = os.cpu_count() or 1
    print("| ranks | processes | shards | CPU of the store, real | simulated | until the last has it, real median "
          "[least] | simulated |\n|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for count, most in itertools.product(chosen.processes, (levels.MOST, chosen.shard)):
        levels.MOST = most
        ranks = count * PER_HOST
        found = real.measure(ranks, PER_HOST, max(1.0, count / 100))
        (store,), took = found["store"], found["round"]
        one = Simulation(costs, LOOPBACK, float("inf"), 0.0, cores, 0).run(speakers(ranks, PER_HOST, True))
        shards = -(-count // most)
        print(
            f"| {ranks:,} | {count} | {shards} | {store:.2f} ms | {one.busy * 1e3:.2f} ms | "
            f"{statistics.median(took):.1f} ms [{min(took):.1f}] | {one.seconds * 1e3:.1f} ms |",
            flush=True,
        )


def main(arguments: list[str]) -> None:
    """Measure what operations cost here, and simulate."""
    parser = argparse.ArgumentParser(description="simulate rounds of an agreement of many ranks over one TCPStore")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--latency", type=float, default=50.0, help="microseconds of one way through the network")
    parser.add_argument("--gigabits", type=float, default=10.0, help="a second, between the store and the ranks")
    parser.add_argument("--spread", type=float, default=0.0, help="milliseconds in which the ranks come")
    parser.add_argument("--validate", action="store_true", help="make real rounds instead, and simulate these")
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 32, 64, 128])
    parser.add_argument("--shard", type=int, default=16, help="speakers of a shard in the second half of --validate")
    chosen = parser.parse_args(arguments)
    found = {count: store_costs.measure(count) for count in store_costs.CONNECTIONS}
    store_costs.show(found)
    (validate if chosen.validate else simulate)(chosen, found[max(found)])


if __name__ == "__main__":
    main(sys.argv[1:])
