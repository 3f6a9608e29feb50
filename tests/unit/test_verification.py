"""What the ranks tell each other once their digests differ, and what rank 0 makes of it."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tracehook.agreement import leftovers
from tracehook.agreement.alarms import Alarm
from tracehook.agreement.mailbox import HostMailbox
from tracehook.agreement.topology import RoundTopology, TopologyEpoch, seen_by
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.symmetric_memory import verification
from tracehook.symmetric_memory.testimony import MOST, joined, read
from tracehook.symmetric_memory.verification import CHANNEL, Verification

WINDOW, ORDINARY = (1, 0), (0, None)
_tests = itertools.count()
KEPT = 4  # uses that a rank remembers; digests it has of all calls


class Store:
    """A store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.operations = 0

    def set(self, key: str, value: str) -> None:
        """Keep a value."""
        self.operations += 1
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        self.operations += 1
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of the keys."""
        self.operations += 1
        return [self.values[key].encode() for key in keys]


class Communicator:
    """A rank's calls: where each one's buffers lay."""

    dead = False

    def __init__(self, places: list[tuple[int, int | None]]) -> None:
        self._places = places
        self.calls = len(places)
        self._digests: list[int] = []

    key = 7

    def raise_fence(self, _fence: object, _seconds: float) -> int:
        """Return the number of calls."""
        return self.calls

    def digests(self, first: int, last: int) -> tuple[int, list[int]]:
        """Return the first call that is known, and the digests from there on."""
        found = range(first, min(last + 1, self.calls))
        while len(self._digests) < self.calls:
            before = self._digests[-1] if self._digests else 0
            self._digests.append(hash((before, self._places[len(self._digests)])))
        return first, [self._digests[call] for call in found]

    def past(self, call: int) -> tuple[str, Any, Any, list[str]] | None:
        """Return what a call used, if it is one of the last."""
        known = self.calls - KEPT <= call < self.calls
        return ("all_reduce", self._places[call], self._places[call], []) if known else None


def _verdict(*ranks: list[tuple[int, int | None]], last: int) -> tuple[RoundVerdict, Store]:
    store = Store()
    facts = {"channel": CHANNEL, "call": last, "first": 0, "last": last, "epoch": 0}
    alarm = Alarm("c", 0, "communicator c", "digests", [], (), "verdict", facts)
    parts = [
        Verification(Communicator(places), [TopologyEpoch(RoundTopology("p", rank, len(ranks), "c", 0))], "c")
        for rank, places in enumerate(ranks)
    ]
    answers = [part.answer(alarm, store) for part in reversed(parts)]  # type: ignore[arg-type]
    assert isinstance(answers[-1], RoundVerdict)
    return answers[-1], store


def test_a_call_with_a_symmetric_kernel_on_one_rank_only_is_named() -> None:
    """One rank takes a window and the other ordinary memory: the verdict says that the call hangs, and which one."""
    verdict, _ = _verdict([WINDOW, WINDOW, WINDOW], [WINDOW, WINDOW, ORDINARY], last=2)
    assert verdict.data == [3, 2]
    assert "At call 2 some ranks are in a symmetric kernel" in verdict.text


def test_a_mixed_call_after_the_first_difference_is_named() -> None:
    """Swapped windows come to an end. The call after them does not."""
    verdict, _ = _verdict([WINDOW, WINDOW, ORDINARY], [WINDOW, (2, 0), WINDOW], last=1)
    assert verdict.data == [3, 2]
    assert "used different memory at call 1" in verdict.text


def test_swapped_windows_do_not_hang() -> None:
    """All ranks are in the symmetric kernel: nothing is aborted."""
    verdict, _ = _verdict([WINDOW, (2, 0)], [WINDOW, WINDOW], last=1)
    assert verdict.data == [2, None]


def test_a_use_that_a_rank_no_longer_knows_is_not_compared() -> None:
    """A rank that is one call further has forgotten one more use. That proves nothing."""
    calls = 3 * KEPT
    verdict, _ = _verdict(calls * [WINDOW], [(2, 0), *calls * [WINDOW]], last=0)
    assert verdict.data == [calls + 1, None]


def test_an_answer_stays_small() -> None:
    """After the calls in question may come any number; an answer tells of no more than `MOST` uses."""
    calls = 3 * MOST
    _, store = _verdict([(2, 0), *calls * [WINDOW]], (calls + 1) * [WINDOW], last=0)
    told = read(store.values["verdict/1"])
    assert len(told.kernels) <= MOST
    (version,) = told.versions
    assert len(version.uses) <= MOST


# --- by hosts ---


class Everywhere:
    """Ranks of several hosts, with a store that counts who reads a key, and a clock that they share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hosts: int, on_each: int, calls: int) -> None:
        self.now = 0.0
        monkeypatch.setattr(verification.time, "monotonic", lambda: self.now)
        self.store = CountingStore()
        self.ranks = hosts * on_each
        numbers = [rank // on_each for rank in range(self.ranks)]
        self.places = [calls * [WINDOW] for _ in range(self.ranks)]
        self.epochs, self.verifications = [], []
        prefix = f"test/{os.getpid()}/{next(_tests)}"
        for rank in range(self.ranks):
            first = RoundTopology(prefix, rank, self.ranks, "c", 0)
            self.epochs.append([TopologyEpoch(first)])
            self.known = [*getattr(self, "known", []), first._replace(hosts=seen_by(rank, numbers))]
            self.verifications.append(Verification(Communicator(self.places[rank]), self.epochs[rank], "c"))

    def learn(self, rank: int) -> None:
        """Let a rank hear who shares a host."""
        topology = self.known[rank]
        self.epochs[rank].append(
            TopologyEpoch(topology, HostMailbox(f"{topology.prefix}/samples", topology.hosts.neighbours, rank))
        )

    def step(self, order: Sequence[int]) -> Alarm | None:
        """Let ranks look, in this order, each after a period."""
        self.now += verification.PERIOD
        alarms = []
        for rank in order:
            self.store.reader = rank
            alarms.append(self.verifications[rank].step(self.store))  # type: ignore[arg-type]
        assert [alarm for rank, alarm in zip(order, alarms, strict=True) if rank != 0 and alarm] == []
        return next(filter(None, alarms), None)

    def settle(self, alarm: Alarm, order: Sequence[int]) -> RoundVerdict:
        """Let all answer until rank 0 knows."""
        for _ in range(10):
            for rank in order:
                self.store.reader = rank
                verdict = self.verifications[rank].answer(alarm, self.store)  # type: ignore[arg-type]
                if verdict is not None:
                    assert rank == 0
                    return verdict
        raise AssertionError("rank 0 did not hear of all")


class CountingStore(Store):
    """Knows who read which key."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = -1
        self.readers: dict[str, set[int]] = defaultdict(set)
        self.read: Counter[int] = Counter()  # keys, by reader, most in one operation

    def check(self, keys: list[str]) -> bool:
        """Take note."""
        for key in keys:
            self.readers[key].add(self.reader)
        self.read[self.reader] = max(self.read[self.reader], len(keys))
        return super().check(keys)


SHAPES = [(1, 4), (4, 1), (6, 4), (9, 3)]


@pytest.mark.parametrize(("hosts", "on_each"), SHAPES)
@pytest.mark.parametrize("knows", ["all", "nobody"])
def test_a_swapped_placement_is_found_over_all_hosts(
    monkeypatch: pytest.MonkeyPatch, hosts: int, on_each: int, knows: str
) -> None:
    """Whichever rank it is, in whatever order the ranks look: the call is named, and who made it."""
    numbers = random.Random(hosts * 100 + on_each)
    for odd in range(hosts * on_each):
        everywhere = Everywhere(monkeypatch, hosts, on_each, calls=40)
        everywhere.places[odd][25] = (2, 0)
        order = list(range(everywhere.ranks))
        if knows == "all":
            for rank in order:
                everywhere.learn(rank)
        alarm = None
        for _ in range(8):
            numbers.shuffle(order)
            alarm = alarm or everywhere.step(order)
        assert alarm is not None
        assert alarm.facts["first"] <= 25 <= alarm.facts["last"]
        numbers.shuffle(order)
        verdict = everywhere.settle(alarm, order)
        assert "at call 25: rank 0 made " in verdict.text
        others = f"ranks 1-{everywhere.ranks - 1}" if everywhere.ranks > 3 else "ranks 1, 2"
        assert f"; {f'rank {odd}' if odd else others} made " in verdict.text


@pytest.mark.parametrize(("hosts", "on_each"), SHAPES)
def test_equal_ranks_raise_no_alarm_and_grow_silent(monkeypatch: pytest.MonkeyPatch, hosts: int, on_each: int) -> None:
    """While they make calls, at different speeds, and while they learn of their hosts one after the other."""
    everywhere = Everywhere(monkeypatch, hosts, on_each, calls=1)
    numbers = random.Random(hosts + on_each)
    order = list(range(everywhere.ranks))
    unknowing = list(order)
    for _ in range(60):
        numbers.shuffle(order)
        assert everywhere.step(order) is None
        for rank in order:
            made = numbers.choice([0, 1, 5, 700])
            everywhere.places[rank].extend([WINDOW] * made)
            everywhere.verifications[rank]._communicator.calls += made
        if unknowing and numbers.random() < 0.5:
            everywhere.learn(unknowing.pop())
    for rank in unknowing:
        everywhere.learn(rank)
    most_calls = max(map(len, everywhere.places))
    for rank in order:
        everywhere.places[rank].extend([WINDOW] * (most_calls - len(everywhere.places[rank])))
        everywhere.verifications[rank]._communicator.calls = most_calls
    for _ in range(6):
        assert everywhere.step(order) is None
    assert everywhere.verifications[0]._same == most_calls - 1
    operations = everywhere.store.operations
    assert everywhere.step(order) is None
    assert everywhere.store.operations == operations, "nothing is new, and the store was used"


def test_no_key_has_two_readers_and_nobody_reads_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 hosts of 4 ranks: rank 0 reads one key of each host."""
    everywhere = Everywhere(monkeypatch, 16, 4, calls=10)
    for rank in range(everywhere.ranks):
        everywhere.learn(rank)
    for _ in range(5):
        assert everywhere.step(range(everywhere.ranks)) is None
    assert everywhere.verifications[0]._same == 9
    assert max(len(readers) for readers in everywhere.store.readers.values()) == 1
    # Before the mailbox is complete a speaker reads its host's posts in the store, too.
    assert max(everywhere.store.read.values()) <= 3 + 15 + 3
    removed = [key for each in everywhere.verifications for key in each.keys_at_end()]
    assert sorted(removed) == sorted(set(removed))
    assert set(everywhere.store.values) <= set(removed)


def test_a_host_whose_mailbox_cannot_be_opened_uses_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where shared memory is full: the same is found."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", Path("/no/such/folder"))
    everywhere = Everywhere(monkeypatch, 3, 3, calls=10)
    everywhere.places[7][4] = (2, 0)
    for rank in range(everywhere.ranks):
        everywhere.learn(rank)
    alarms = [everywhere.step(range(everywhere.ranks)) for _ in range(6)]
    alarm = next(filter(None, alarms))
    assert "rank 7 made" in everywhere.settle(alarm, range(everywhere.ranks)).text


def test_the_answer_of_many_equal_ranks_is_as_long_as_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their numbers are longer."""
    everywhere = Everywhere(monkeypatch, 8, 4, calls=600)
    everywhere.places[0][100] = (2, 0)
    alarm = next(filter(None, [everywhere.step(range(everywhere.ranks)) for _ in range(6)]))
    everywhere.settle(alarm, list(reversed(range(everywhere.ranks))))
    told = [read(text) for key, text in everywhere.store.values.items() if key.startswith(alarm.verdict_key)]
    together = joined(told)
    assert [version.ranks for version in together.versions] == [list(range(1, everywhere.ranks))]
