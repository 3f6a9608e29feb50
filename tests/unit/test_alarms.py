"""Ranks that wait ask the others why; those that ask the same ask once, because every process reads each alarm."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from tracehook.agreement import watchdog
from tracehook.agreement.agreement import Waiting
from tracehook.agreement.alarms import COUNT_KEY, Alarm
from tracehook.agreement.rounds import RoundTopology
from tracehook.agreement.verdicts import Post, RoundVerdict
from tracehook.agreement.watchdog import Watchdog
from tracehook.log import clock

KEY = "35fbbc443ced2476"
RANKS = 4


@contextlib.contextmanager
def _waits(
    store: dist.Store, rank: int, call: int = 3, log: Callable[[str], None] = lambda _: None
) -> Iterator[Watchdog]:
    """Give the watch of a rank that has waited for some seconds in round 1."""
    topology = RoundTopology("p", rank, RANKS, "communicator c", 20.0)
    post = Post("compare", "windows", ["a"], (call, 1))
    watch = Watchdog(store)
    facts = {"channel": "plans", "call": call, "alone": True}
    with watch.following(KEY, Waiting(topology, 1, post, clock.monotonic() - 5), facts, log):
        yield watch


def _alarms(store: dist.Store) -> list[Alarm]:
    return [Alarm(*json.loads(store.get(f"{COUNT_KEY}/{one + 1}"))) for one in range(store.add(COUNT_KEY, 0))]


@pytest.fixture
def store():
    """Return the store of all ranks."""
    return dist.HashStore()


@pytest.mark.parametrize("after", [0.5, 60.0])
def test_a_round_that_takes_long_is_in_the_log_once_and_so_is_its_end(store, monkeypatch, after):
    """Where the others see it who read the logs, while the rank waits. Of a short round the log says nothing."""
    logged: list[str] = []
    with _waits(store, 1, log=logged.append) as watch:
        now = clock.monotonic() - 5 + after
        monkeypatch.setattr(clock, "monotonic", lambda: now)
        watch._log_long_waits()
        watch._log_long_waits()
        assert logged == ["agreement.waits"] * (after > watchdog.SAID_AFTER)
    assert logged[1:] == ["agreement.waited"] * (after > watchdog.SAID_AFTER)


def test_ranks_that_ask_the_same_ask_once(store):
    """However many ranks wait in a round, and however often they look, there is one alarm."""
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(_waits(store, rank)) for rank in range(RANKS)]
        for watch in watches * 2:
            watch._look_after_own(store)
        assert [told.rank for told in _alarms(store)] == [0]


def test_ranks_at_different_calls_ask_each(store):
    """An answer depends on the call before which a rank waits, so each of them is asked about."""
    with _waits(store, 1, call=3) as one, _waits(store, 2, call=4) as other:
        one._look_after_own(store)
        other._look_after_own(store)
        assert [told.facts["call"] for told in _alarms(store)] == [3, 4]


def test_a_rank_asks_itself_if_the_first_one_died_before_it_did(store, monkeypatch):
    """A rank says that it asks when the alarm is there, and not before."""

    def dies(*_: object) -> None:
        raise ConnectionError

    with _waits(store, 1) as first, _waits(store, 2) as second:
        with monkeypatch.context() as patch:
            patch.setattr(watchdog, "put", dies)
            with pytest.raises(ConnectionError):
                first._look_after_own(store)
        second._look_after_own(store)
        second._look_after_own(store)
        assert [told.rank for told in _alarms(store)] == [2]


def test_what_a_rank_wrote_to_ask_first_goes_with_the_round(store):
    """Only the alarm itself stays in the store."""
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


def test_no_answer_ends_a_round_whose_verdict_stands(store):
    """A rank that only has not heard yet how its own round ended is not elsewhere: the asker waits for it."""
    with _waits(store, 1) as asks:
        asks._look_after_own(store)
    proposal = RoundVerdict("mismatch", "rank 2 waits elsewhere", data=[("p/other/verdict", (1,))])
    answers, subject = Watchdog(store), _Answers(proposal)
    answers._subjects[KEY] = subject  # type: ignore[assignment]
    store.set("p/other/verdict", RoundVerdict("ok").written())
    answers._look_at_others(store)
    assert not store.check(["p/1/verdict"])
    store.delete_key("p/other/verdict")
    answers._look_at_others(store)
    assert store.check(["p/1/verdict", "p/other/verdict"])


def test_who_has_left_a_round_does_not_end_it_again(store):
    """Two rounds later its verdict is removed, and a rank that has gone on by then has made that call rightly."""
    with _waits(store, 1) as asks:
        asks._look_after_own(store)
    answers, subject = Watchdog(store), _Answers(RoundVerdict("diverged", "rank 2 made another call"))
    subject.came.append("p/1/verdict")
    answers._subjects[KEY] = subject  # type: ignore[assignment]
    answers._look_at_others(store)
    assert not store.check(["p/1/verdict"])
    assert (subject.heard, answers._open) == ([], {})


@pytest.mark.parametrize("knows", [False, True])
def test_who_is_in_the_round_itself_does_not_ask_the_store_whether_it_is_over(store, knows):
    """It hears that anyway, so a round that takes long costs the store nothing; an answer it gives all the same."""
    with _waits(store, 1) as watch:
        watch._look_after_own(store)
        subject = _Answers(RoundVerdict("diverged", "rank 1 made another call") if knows else None)
        watch._subjects[KEY] = subject  # type: ignore[assignment]
        asked: list[Any] = []

        class Noting:
            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return getattr(store, name)

        watch._look_at_others(Noting())
        watch._look_at_others(Noting())
        assert ("check" in asked) == knows
        assert store.check(["p/1/verdict"]) == knows
