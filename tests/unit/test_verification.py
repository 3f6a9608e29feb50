"""What the ranks tell each other once their digests differ, and what rank 0 makes of it."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tracehook.agreement.alarms import Alarm
from tracehook.agreement.rounds import RoundTopology
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.log import clock
from tracehook.symmetric_memory import verification
from tracehook.symmetric_memory.testimony import MOST, read
from tracehook.symmetric_memory.verification import CHANNEL, Verification

Place = tuple[int, int | None]  # window and offset of a buffer
WINDOW: Place = (1, 0)
ORDINARY: Place = (0, None)
KEPT = 4  # uses that a rank remembers; digests it has of all calls


class _Store:
    """A store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.operations = 0

    def set(self, key: str, value: str) -> None:
        self.operations += 1
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        self.operations += 1
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.operations += 1
        return [self.values[key].encode() for key in keys]


class _Communicator:
    """A rank's calls: where each one's buffers lay."""

    dead = False

    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self.calls = len(places)
        self._digests: list[int] = []

    key = 7

    def raise_fence(self, _fence: object, _seconds: float) -> int:
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


def _verification(communicator: Any, topology: RoundTopology) -> Verification:
    return Verification(communicator, topology)


def _verdict(*ranks: list[Place], last: int) -> tuple[RoundVerdict, _Store]:
    store = _Store()
    facts = {"channel": CHANNEL, "call": last, "first": 0, "last": last}
    alarm = Alarm("c", 0, "communicator c", "digests", [], (), "verdict", facts)
    parts = [
        _verification(_Communicator(places), RoundTopology("p", rank, len(ranks), "communicator c", 0))
        for rank, places in enumerate(ranks)
    ]
    answers = [part.answer(alarm, store) for part in reversed(parts)]
    assert isinstance(answers[-1], RoundVerdict)
    return answers[-1], store


SWAPPED: Place = (2, 0)
VERDICTS: dict[str, tuple[list[list[Place]], int, list[int | None], str]] = {
    "a call with a symmetric kernel on one rank only hangs, and is named": (
        [[WINDOW, WINDOW, WINDOW], [WINDOW, WINDOW, ORDINARY]], 2, [3, 2],
        "At call 2 some ranks are in a symmetric kernel",
    ),
    "swapped windows come to an end; the mixed call after them does not": (
        [[WINDOW, WINDOW, ORDINARY], [WINDOW, SWAPPED, WINDOW]], 1, [3, 2], "used different memory at call 1",
    ),
    "where all ranks are in the symmetric kernel nothing is aborted": (
        [[WINDOW, SWAPPED], [WINDOW, WINDOW]], 1, [2, None], "",
    ),
    "a rank that is one call further has forgotten one more use, which proves nothing": (
        [3 * KEPT * [WINDOW], [SWAPPED, *3 * KEPT * [WINDOW]]], 0, [3 * KEPT + 1, None], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERDICTS)
def test_the_call_that_hangs_is_named(case: str) -> None:
    """Or none, if none does."""
    ranks, last, data, told = VERDICTS[case]
    verdict, _ = _verdict(*ranks, last=last)
    assert verdict.data == data
    assert told in verdict.text


def test_an_answer_stays_small() -> None:
    """After the calls in question may come any number; an answer tells of no more than `MOST` uses."""
    calls = 3 * MOST
    _, store = _verdict([(2, 0), *calls * [WINDOW]], (calls + 1) * [WINDOW], last=0)
    told = read(store.values["verdict/1"])
    assert len(told.kernels) <= MOST
    assert len(told.uses) <= MOST


class Everywhere:
    """Ranks with a store that counts who reads a key, and a clock that they share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int, calls: int) -> None:
        self.now = 0.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self.store = _CountingStore()
        self.ranks = ranks
        self.places = [calls * [WINDOW] for _ in range(ranks)]
        self.communicators = [_Communicator(places) for places in self.places]
        self.verifications = [
            _verification(communicator, RoundTopology("p", rank, ranks, "c", 0))
            for rank, communicator in enumerate(self.communicators)
        ]

    def step(self, order: Sequence[int]) -> Alarm | None:
        """Let ranks look, in this order, each after a period."""
        self.now += self.verifications[0]._period
        alarms = []
        for rank in order:
            self.store.reader = rank
            alarms.append(self.verifications[rank].step(self.store))
        assert [alarm for rank, alarm in zip(order, alarms, strict=True) if rank != 0 and alarm] == []
        return next(filter(None, alarms), None)

    def settle(self, alarm: Alarm, order: Sequence[int]) -> RoundVerdict:
        """Let all answer until rank 0 knows."""
        for _ in range(10):
            for rank in order:
                self.store.reader = rank
                verdict = self.verifications[rank].answer(alarm, self.store)
                if verdict is not None:
                    assert rank == 0
                    return verdict
        raise AssertionError("rank 0 did not hear of all")


class _CountingStore(_Store):
    """Knows who read which key."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = -1
        self.readers: dict[str, set[int]] = defaultdict(set)
        self.read: Counter[int] = Counter()  # keys, by reader, most in one operation

    def check(self, keys: list[str]) -> bool:
        for key in keys:
            self.readers[key].add(self.reader)
        self.read[self.reader] = max(self.read[self.reader], len(keys))
        return super().check(keys)


RANKS = [2, 4, 24, 27]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_swapped_placement_is_found(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Whichever rank it is, in whatever order the ranks look: the call is named, and who made it."""
    numbers = random.Random(ranks)
    for odd in range(ranks):
        everywhere = Everywhere(monkeypatch, ranks, calls=40)
        everywhere.places[odd][25] = (2, 0)
        order = list(range(ranks))
        alarm = None
        for _ in range(4):
            numbers.shuffle(order)
            alarm = alarm or everywhere.step(order)
        assert alarm is not None
        assert alarm.facts["first"] <= 25 <= alarm.facts["last"]
        numbers.shuffle(order)
        verdict = everywhere.settle(alarm, order)
        assert "at call 25: rank 0 made " in verdict.text
        others = f"ranks 1-{ranks - 1}" if ranks > 2 else "rank 1"
        assert f"; {f'rank {odd}' if odd else others} made " in verdict.text


@pytest.mark.parametrize("ranks", RANKS)
def test_equal_ranks_raise_no_alarm_and_grow_silent(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """While they make calls at different speeds, and after that."""
    everywhere = Everywhere(monkeypatch, ranks, calls=1)
    numbers = random.Random(ranks)
    order = list(range(ranks))
    for _ in range(60):
        numbers.shuffle(order)
        assert everywhere.step(order) is None
        for rank in order:
            made = numbers.choice([0, 1, 5, 700])
            everywhere.places[rank].extend([WINDOW] * made)
            everywhere.communicators[rank].calls += made
    most_calls = max(map(len, everywhere.places))
    for rank in order:
        everywhere.places[rank].extend([WINDOW] * (most_calls - len(everywhere.places[rank])))
        everywhere.communicators[rank].calls = most_calls
    for _ in range(3):
        assert everywhere.step(order) is None
    assert everywhere.verifications[0]._same == most_calls - 1
    operations = everywhere.store.operations
    assert everywhere.step(order) is None
    assert everywhere.store.operations == operations, "nothing is new, and the store was used"


def test_only_rank_0_reads_and_it_removes_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks, each with one key."""
    everywhere = Everywhere(monkeypatch, 64, calls=10)
    for _ in range(3):
        assert everywhere.step(range(everywhere.ranks)) is None
    assert everywhere.verifications[0]._same == 9
    assert set().union(*everywhere.store.readers.values()) == {0}
    assert set(everywhere.store.values) == set(everywhere.verifications[0].keys_at_end())
    assert [each.keys_at_end() for each in everywhere.verifications[1:]] == [[]] * 63


def test_many_ranks_take_samples_less_often() -> None:
    """Rank 0 reads at most `MOST_AT_ONCE` samples in a period."""
    periods = [_verification(_Communicator([]), RoundTopology("p", 0, n, "c", 0))._period for n in (2, 128, 1024)]
    assert periods == [verification.PERIOD, verification.PERIOD, 8 * verification.PERIOD]
