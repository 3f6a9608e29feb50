"""What the ranks tell each other once their digests differ, and what rank 0 makes of it."""

from __future__ import annotations

import json
from typing import Any

from tracehook.symmetric_memory.alarm import Alarm
from tracehook.symmetric_memory.verdicts import RoundVerdict
from tracehook.symmetric_memory.verification import CHANNEL, MOST, Verification

WINDOW, ORDINARY = (1, 0), (0, None)
KEPT = 4  # uses that a rank remembers; digests it has of all calls


class Store:
    """A store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        """Keep a value."""
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of the keys."""
        return [self.values[key].encode() for key in keys]


class Communicator:
    """A rank's calls: where each one's buffers lay."""

    dead = False

    def __init__(self, places: list[tuple[int, int | None]]) -> None:
        self._places = places
        self.calls = len(places)

    def raise_fence(self, _fence: object) -> int:
        """Return the number of calls."""
        return self.calls

    def digests(self, first: int, last: int) -> tuple[int, list[int]]:
        """Return the first call that is known, and the digests from there on."""
        return first, [hash(self._places[call]) & 0xFF for call in range(first, min(last + 1, self.calls))]

    def past(self, call: int) -> tuple[str, Any, Any, list[str]] | None:
        """Return what a call used, if it is one of the last."""
        known = self.calls - KEPT <= call < self.calls
        return ("all_reduce", self._places[call], self._places[call], []) if known else None


def _verdict(*ranks: list[tuple[int, int | None]], last: int) -> tuple[RoundVerdict, Store]:
    store = Store()
    facts = {"channel": CHANNEL, "call": last, "first": 0, "last": last}
    alarm = Alarm("c", 0, "communicator c", "digests", [], (), "verdict", facts)
    parts = [Verification(Communicator(places), "p", rank, len(ranks), "c") for rank, places in enumerate(ranks)]
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
    for rank in (0, 1):
        lists = [value for value in json.loads(store.values[f"verdict/{rank}"]) if isinstance(value, list | dict)]
        assert max(map(len, lists)) <= MOST
