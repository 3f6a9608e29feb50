"""Ranks that wait ask the others why; those that ask the same ask once, because every process reads each alarm."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from tracehook.symmetric_memory import alarm, levels, rounds
from tracehook.symmetric_memory.agreement import Waiting
from tracehook.symmetric_memory.alarm import COUNT_KEY, Watch
from tracehook.symmetric_memory.lines import Task
from tracehook.symmetric_memory.part import Part
from tracehook.symmetric_memory.question import Alarm
from tracehook.symmetric_memory.verdicts import Post, RoundVerdict

KEY = "35fbbc443ced2476"
RANKS = 4


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no rank lose its trust in another one while a test runs."""
    monkeypatch.setattr(alarm, "LATE", 60.0)


@contextlib.contextmanager
def _waits(store: dist.Store, rank: int, call: int = 3, cut: Any = None) -> Iterator[Watch]:
    """Give the watch of a rank that has waited for some seconds in round 1."""
    part = Part("p", rank, RANKS, "communicator c", 20.0, levels=cut)
    post = Post("compare", "windows", ["a"], (call, 1))
    task = Task(rounds.attend(part, 1, post), 20.0)
    watch = Watch(store)
    facts = {"channel": "plans", "call": call, "alone": True}
    with watch.following(KEY, Waiting(task, part, 1, post, time.monotonic() - 5), facts):
        yield watch


def _alarms(store: dist.Store) -> list[Alarm]:
    return [Alarm(*json.loads(store.get(f"{COUNT_KEY}/{one + 1}"))) for one in range(store.add(COUNT_KEY, 0))]


def test_ranks_that_ask_the_same_ask_once():
    """However many ranks wait in a round, and however often they look, there is one alarm."""
    store = dist.HashStore()
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(_waits(store, rank)) for rank in range(RANKS)]
        for watch in watches * 2:
            watch._look_after_own(store)
        assert [told.rank for told in _alarms(store)] == [0]


def test_ranks_at_different_calls_ask_each():
    """An answer depends on the call before which a rank waits, so each of them is asked about."""
    store = dist.HashStore()
    with _waits(store, 1, call=3) as one, _waits(store, 2, call=4) as other:
        one._look_after_own(store)
        other._look_after_own(store)
        assert [told.facts["call"] for told in _alarms(store)] == [3, 4]


def test_a_rank_asks_itself_if_the_first_one_died_before_it_did(monkeypatch):
    """Nobody relies for long on a rank of which no alarm is heard, nor asks twice if one is."""
    store = dist.HashStore()
    with _waits(store, 1) as first, _waits(store, 2) as second:
        monkeypatch.setattr(alarm, "_put", lambda *_: None)
        first._look_after_own(store)
        second._look_after_own(store)
        monkeypatch.undo()
        assert _alarms(store) == []
        monkeypatch.setattr(alarm, "LATE", 0.0)
        second._look_after_own(store)
        second._look_after_own(store)
        assert [told.rank for told in _alarms(store)] == [2]


def test_what_a_rank_wrote_to_ask_first_goes_with_the_round():
    """Only the alarm itself stays in the store."""
    store = dist.HashStore()
    with _waits(store, 1) as first, _waits(store, 2) as second:
        first._look_after_own(store)
        second._look_after_own(store)
    held = store.num_keys()
    for watch in (first, second):
        watch._look_after_own(store)
    assert store.num_keys() == held - 1


class _Answers:
    """A communicator of a process that knows how the round ends."""

    def __init__(self, verdict: RoundVerdict | None) -> None:
        self.verdict = verdict
        self.heard: list[str] = []
        self.came: list[str] = []  # rounds

    def answer(self, asked: Alarm, store: dist.Store) -> RoundVerdict | None:  # noqa: ARG002
        return self.verdict

    def has_come_to(self, verdict_key: str) -> bool:
        return verdict_key in self.came

    def apart(self, verdict: RoundVerdict) -> None:
        self.heard.append(verdict.kind)

    def missed(self, verdict_key: str, verdict: RoundVerdict) -> None:  # noqa: ARG002
        self.heard.append(verdict.kind)


def test_who_answers_ends_the_round_for_all_shards():
    """Where ranks wait for copies of the verdict, they find them at once: who collects may be who answers."""
    store = dist.HashStore()
    cut = levels.cut(1, [[rank] for rank in range(RANKS)], 2)
    with _waits(store, 1, cut=cut) as asks:
        asks._look_after_own(store)
    answers, subject = Watch(store), _Answers(RoundVerdict("diverged", "rank 2 made another call"))
    answers._subjects[KEY] = subject  # type: ignore[assignment]
    answers._look_at_others(store)
    assert store.get("p/1/verdict") == store.get("p/1/verdict/2")
    assert subject.heard == ["diverged"]


def test_who_has_left_a_round_does_not_end_it_again():
    """Two rounds later its verdict is removed, and a rank that has gone on by then has made that call rightly."""
    store = dist.HashStore()
    with _waits(store, 1) as asks:
        asks._look_after_own(store)
    answers, subject = Watch(store), _Answers(RoundVerdict("diverged", "rank 2 made another call"))
    subject.came.append("p/1/verdict")
    answers._subjects[KEY] = subject  # type: ignore[assignment]
    answers._look_at_others(store)
    assert not store.check(["p/1/verdict"])
    assert (subject.heard, answers._open) == ([], {})


@pytest.mark.parametrize("knows", [False, True])
def test_who_is_in_the_round_itself_does_not_ask_the_store_whether_it_is_over(knows):
    """It hears that anyway, so a round that takes long costs the store nothing; an answer it gives all the same."""
    store = dist.HashStore()
    with _waits(store, 1) as watch:
        watch._look_after_own(store)
        subject = _Answers(RoundVerdict("diverged", "rank 1 made another call") if knows else None)
        watch._subjects[KEY] = subject  # type: ignore[assignment]
        asked: list[Any] = []

        class Noting:
            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return getattr(store, name)

        watch._look_at_others(Noting())  # type: ignore[arg-type]
        watch._look_at_others(Noting())  # type: ignore[arg-type]
        assert ("check" in asked) == knows
        assert store.check(["p/1/verdict"]) == knows
