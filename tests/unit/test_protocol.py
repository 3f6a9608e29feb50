"""Every interleaving of the whole protocol of two and three ranks: handshake, rounds, alarms, deaths, ends.

A rank greets until all have heard it.

What runs here is the code's own steps (`rounds.attend`, `rounds.decline`), on a store that does one operation at a
time. A rank that waits may run out of time at any moment, except in its last call, where it waits for ever. So a
history in which the ranks do not come level again ends with ranks that wait for each other, and is found.
"""

import inspect
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tracehook.agreement import rounds
from tracehook.agreement.handshake import RankPlace, greeting
from tracehook.agreement.rounds import Operation, RoundTopology
from tracehook.agreement.verdicts import Post, RoundVerdict

LAST = "last"
DIVERGED = RoundVerdict("diverged", "rank 1 made another call").written()


class Outcome(NamedTuple):
    """How one call ended on one rank, and by which verdict."""

    position: str
    kind: str
    text: str


def place(position: str) -> list[int]:
    """Return a position as ranks say it: it grows along the program."""
    return [ord(position[0])]


def life(topology: RoundTopology, calls: list[str], said: dict[str, Any]) -> Generator[Operation, Any, list[Outcome]]:
    """Make calls, each named by its position, one after the other, as an Agreement does; ``no x`` declines call x.

    `said`: the greeting; empty if all have heard it before.
    """
    number, outcomes = 0, []
    for call in calls:
        if call.startswith("no "):
            number += 1
            position = call.removeprefix("no ")
            post = Post("decline", "windows", ["no"], place(position), said)
            yield from rounds.decline(topology, number, post, "no")
            outcomes.append(Outcome(position, "declined", ""))
            continue
        while True:
            number += 1
            post = Post("compare", "windows", ["a"], place(call), said)
            verdict = yield from rounds.attend(topology, number, post)
            if verdict.shaken is not None and said:
                said = {}
            if rounds.is_for(verdict, post):
                break
        outcomes.append(Outcome(call, verdict.kind, verdict.text))
        if verdict.kind == "diverged":
            break
    return outcomes


class State(NamedTuple):
    """Where a history is: what the store holds, what each rank has heard so far (that is all it knows), who died."""

    store: frozenset[tuple[str, str]]
    heard: tuple[tuple[Any, ...], ...]
    dead: frozenset[int] = frozenset()
    alarm: bool = False


class Model:
    """All histories of some lives."""

    def __init__(self, lives, deaths=0, alarms=False, greets=False, counts_twice=False):
        self.lives = lives
        self.deaths = deaths
        self.alarms = alarms
        self.counts_twice = counts_twice
        self.said = greeting(RankPlace("host"), {}) if greets else {}
        self.topologies = [RoundTopology("p", rank, len(lives), "group", 1.0) for rank in range(len(lives))]
        self.known: dict[tuple[int, tuple[Any, ...]], Operation | list[Outcome]] = {}
        self.last: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def steps(self, rank: int) -> Generator[Operation, Any, list[Outcome]]:
        """Return the life of a rank."""
        return life(self.topologies[rank], self.lives[rank], self.said)

    def now(self, rank: int, heard: tuple[Any, ...]) -> Operation | list[Outcome]:
        """Return what a rank that has heard this does next, or how its calls ended."""
        key = (rank, heard)
        if key not in self.known:
            steps = self.steps(rank)
            answer: Any = None
            try:
                for answer in (None, *heard):
                    wanted = steps.send(answer)
                self.known[key] = wanted
            except StopIteration as end:
                self.known[key] = end.value
        return self.known[key]

    def in_last_call(self, rank: int, heard: tuple[Any, ...]) -> bool:
        """Whether the rank is in its last call."""
        key = (rank, heard)
        if key not in self.last:
            steps = self.steps(rank)
            for answer in (None, *heard):
                steps.send(answer)
            self.last[key] = inspect.getgeneratorlocals(steps)["call"] == LAST
        return self.last[key]

    def moves(self, state: State) -> list[State]:
        """Return what may happen next."""
        found = []
        store = dict(state.store)
        for rank, heard in enumerate(state.heard):
            wanted = self.now(rank, heard)
            if rank in state.dead or isinstance(wanted, list):
                continue
            for result in self.results(state, store, rank, wanted):
                changed, answer = result
                ears = (*state.heard[:rank], (*heard, answer), *state.heard[rank + 1 :])
                found.append(state._replace(store=frozenset(changed.items()), heard=ears))
            if len(state.dead) < self.deaths:
                found.append(state._replace(dead=state.dead | {rank}))
        if self.alarms and not state.alarm:
            # The watchdog of a rank that made another call ends a round for those that wait in it.
            for key in {f"{key.rpartition('/')[0]}/verdict" for key in store if key[:2] == "p/" and key[2:3].isdigit()}:
                told = {key: DIVERGED} | store
                found.append(state._replace(store=frozenset(told.items()), alarm=True))
        return found

    def results(self, state, store, rank, wanted):
        """Return (store afterwards, answer) for each way in which an operation may end; none while it waits."""
        match wanted:
            case Operation("set", (key, value)):
                return [(store | {key: value}, None)]
            case Operation("count", (key,)):
                came = int(store.get(key, "0"))
                found = [(store | {key: str(came + 1)}, came + 1)]
                if self.counts_twice and "lost" not in store:
                    found.append((store | {key: str(came + 2), "lost": "a connection"}, came + 2))
                return found
            case Operation("wait", (key,)):
                if key in store:
                    return [(store, True)]
                return [] if self.is_patient(state, rank) else [(store, False)]
            case Operation("read", (keys,)):
                are_there = all(key in store for key in keys)
                return [(store, tuple(store[key].encode() for key in keys) if are_there else ())]
            case Operation("claim", (key, value)):
                changed = {key: value} | store
                return [(changed, changed[key].encode())]
            case Operation("peek", (keys,)):
                return [(store, tuple(store.get(key, "").encode() for key in keys))]
        raise AssertionError(wanted)

    def is_patient(self, state: State, rank: int) -> bool:
        """Whether the rank waits for ever: in its last call, if nothing went wrong that others cannot make good."""
        return self.in_last_call(rank, state.heard[rank]) and not state.dead and not state.alarm

    def ends(self) -> tuple[set[State], int]:
        """Go through all histories; return the states in which nothing can happen any more, and how many there are."""
        first = State(frozenset(), tuple(() for _ in self.lives))
        seen, open_ = {first}, [first]
        ended = set()
        while open_:
            state = open_.pop()
            following = self.moves(state)
            if not following:
                ended.add(state)
            for one in following:
                if one not in seen:
                    seen.add(one)
                    open_.append(one)
        return ended, len(seen)


def judge(model: Model) -> tuple[int, set[str]]:
    """Check every history; return how many states there were, and in which ways calls ended."""
    ended, states = model.ends()
    kinds = set()
    for end in ended:
        by_position: dict[str, set[str]] = {}
        for rank, heard in enumerate(end.heard):
            outcomes = model.now(rank, heard)
            if rank in end.dead:
                continue
            assert isinstance(outcomes, list), f"rank {rank} waits for ever: {end}"
            for outcome in outcomes:
                kinds.add(outcome.kind)
                if outcome.kind != "declined":
                    by_position.setdefault(outcome.position, set()).add(f"{outcome.kind} {outcome.text}")
        for position, verdicts in by_position.items():
            assert not (any(one.startswith("ok") for one in verdicts) and len(verdicts) > 1), (position, verdicts, end)
        if LAST in by_position and not end.dead and not end.alarm:
            assert by_position[LAST] == {"ok "}, f"the ranks are not level: {by_position[LAST]} in {end}"
    return states, kinds


LIVES = {
    "all at one call": [["a", LAST], ["a", LAST]],
    "the leader skips a call": [[LAST], ["a", LAST]],
    "the other skips a call": [["a", LAST], [LAST]],
    "each skips another call": [["a", LAST], ["b", LAST]],
    "the leader declines": [["no a", LAST], ["a", LAST]],
    "the other declines": [["a", LAST], ["no a", LAST]],
    "both decline": [["no a", LAST], ["no a", LAST]],
    "one declines what nobody waits for": [["no a", LAST], [LAST]],
    "two calls": [["a", "b", LAST], ["a", "b", LAST]],
    "one skips two calls": [["a", "b", LAST], [LAST]],
    "three ranks": [["a", LAST], ["a", LAST], ["a", LAST]],
    "three ranks, one skips": [["a", LAST], ["a", LAST], [LAST]],
    "three ranks, the leader skips": [[LAST], ["a", LAST], ["a", LAST]],
    "three ranks, one declines": [["a", LAST], ["a", LAST], ["no a", LAST]],
    "three ranks, the leader declines": [["no a", LAST], ["a", LAST], ["a", LAST]],
}


@pytest.mark.parametrize("case", LIVES)
def test_no_rank_goes_on_while_another_raises_and_all_come_level(case):
    """Whatever the order, and whoever runs out of time: one outcome a call, and the last call succeeds on all."""
    states, kinds = judge(Model(LIVES[case]))
    assert states > 30
    assert kinds >= {"ok"}


TROUBLED = {
    "two ranks": [["a", "b"], ["a", "b"]],
    "the other declines": [["a", "b"], ["no a", "b"]],
    "three ranks": [["a"], ["a"], ["a"]],
}


@pytest.mark.parametrize("case", TROUBLED)
def test_a_rank_may_die_at_any_step(case):
    """The others still have one outcome a call, and none waits for ever."""
    _, kinds = judge(Model(TROUBLED[case], deaths=1))
    assert "timeout" in kinds


@pytest.mark.parametrize("case", ["two ranks", "three ranks"])
def test_an_alarm_may_be_answered_at_any_step(case):
    """All ranks in a round that a watchdog ended hear the same, and none goes on in it."""
    _, kinds = judge(Model(TROUBLED[case], alarms=True))
    assert "diverged" in kinds


@pytest.mark.parametrize("case", ["all at one call", "three ranks, one skips"])
def test_a_rank_may_count_itself_twice(case):
    """It lost its connection, and does not know whether it was counted: it counts again, and all come level."""
    _, kinds = judge(Model(LIVES[case], counts_twice=True))
    assert kinds >= {"ok"}


COMPOSED = {
    "two ranks": [["a", "b", LAST], ["a", "b", LAST]],
    "two ranks, one skips": [["a", "b", LAST], ["a", LAST]],
    "two ranks, one declines": [["a", "b"], ["a", "no b"]],
    "three ranks": [["a"], ["a"], ["a"]],
}


@pytest.mark.parametrize("trouble", [{}, {"deaths": 1}, {"alarms": True}], ids=["", "deaths", "alarms"])
@pytest.mark.parametrize("case", COMPOSED)
def test_the_ranks_greet_first(case, trouble):
    """From the handshake to the end, with one death or one alarm at any step: one outcome a call, no endless wait."""
    lives = COMPOSED[case]
    states, kinds = judge(Model(lives, greets=True, **trouble))
    assert states > 30
    assert kinds >= {"ok"}
    assert ("diverged" in kinds) == ("alarms" in trouble)
