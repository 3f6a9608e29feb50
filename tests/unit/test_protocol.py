"""Every interleaving of the rounds of two and three ranks: posts, time-outs, verdicts, late ranks, deaths, alarms.

With and without hosts, whose ranks meet on a board first and may leave it at any moment for the store. With and without
shards, whose ranks wait for a copy of the verdict.

What runs here is the code's own steps (`rounds.attend`, `rounds.decline`), on a store that does one operation at a
time. A rank that waits may run out of time at any moment, except in its last call, where it waits for ever. So a
history in which the ranks do not come level again ends with ranks that wait for each other, and is found.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tracehook.symmetric_memory import rounds
from tracehook.symmetric_memory.hosts import by_host, seen_by
from tracehook.symmetric_memory.levels import Levels
from tracehook.symmetric_memory.part import Part
from tracehook.symmetric_memory.rounds import Operation
from tracehook.symmetric_memory.verdicts import Post, RoundVerdict

LAST = "last"
DIVERGED = json.dumps(RoundVerdict("diverged", "rank 1 made another call"))


class Outcome(NamedTuple):
    """How one call ended on one rank, and by which verdict."""

    position: str
    kind: str
    text: str


def place(position: str) -> list[int]:
    """Return a position as ranks say it: it grows along the program."""
    return [ord(position[0])]


def life(part: Part, calls: list[str]) -> Generator[Operation, Any, list[Outcome]]:
    """Make calls, each named by its position, one after the other, as an Agreement does; ``no x`` declines call x."""
    number, outcomes = 0, []
    for call in calls:
        if call.startswith("no "):
            number += 1
            position = call.removeprefix("no ")
            yield from rounds.decline(part, number, Post("decline", "windows", ["no"], place(position)), "no")
            outcomes.append(Outcome(position, "declined", ""))
            continue
        post = Post("compare", "windows", ["a"], place(call))
        while True:
            number += 1
            verdict = yield from rounds.attend(part, number, post)
            if rounds.is_for(verdict, post):
                break
        outcomes.append(Outcome(call, verdict.kind, verdict.text))
        if verdict.kind == "diverged":
            break
    return outcomes


class Texts(dict[int, str]):
    """Texts by rank, as the board gives them; never changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class State(NamedTuple):
    """Where a history is: what the store holds, what each rank has heard so far (that is all it knows), who died."""

    store: frozenset[tuple[str, str]]
    heard: tuple[tuple[Any, ...], ...]
    dead: frozenset[int] = frozenset()
    alarm: bool = False


def cut(rank: int, numbers: list[int], shards: tuple[tuple[int, ...], ...]) -> Levels | None:
    """Return shards of these speakers; those of the code are larger, and all of one size but the last."""
    own = {ranks[0]: ranks for ranks in by_host(numbers)}
    for speakers in shards:
        ranks = sorted(one for speaker in speakers for one in own[speaker])
        if rank in ranks:
            return Levels([each[0] for each in shards], speakers[0], speakers, ranks)
    return None


class Model:
    """All histories of some lives."""

    def __init__(
        self,
        lives: list[list[str]],
        hosts: tuple[tuple[int, ...], ...] = (),
        deaths: int = 0,
        alarms: bool = False,
        shards: tuple[tuple[int, ...], ...] = (),
        no_board: tuple[int, ...] = (),
    ) -> None:
        self.lives = lives
        self.no_board = no_board
        self.deaths = deaths
        self.alarms = alarms
        host_of = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
        numbers = [host_of.get(rank, -1 - rank) for rank in range(len(lives))]
        self.parts = [
            Part("p", rank, len(lives), "group", 1.0, seen_by(rank, numbers), levels=cut(rank, numbers, shards))
            for rank in range(len(lives))
        ]
        self.known: dict[tuple[int, tuple[Any, ...]], Any] = {}
        self.last: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def now(self, rank: int, heard: tuple[Any, ...]) -> Operation | list[Outcome]:
        """Return what a rank that has heard this does next, or how its calls ended."""
        key = (rank, heard)
        if key not in self.known:
            steps = life(self.parts[rank], self.lives[rank])
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
            steps = life(self.parts[rank], self.lives[rank])
            for answer in (None, *heard):
                steps.send(answer)
            self.last[key] = steps.gi_frame.f_locals["call"] == LAST
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
                changed, heard_then = self.at_once(result[0], rank, (*heard, result[1]))
                ears = (*state.heard[:rank], heard_then, *state.heard[rank + 1 :])
                found.append(state._replace(store=frozenset(changed.items()), heard=ears))
            if len(state.dead) < self.deaths:
                found.append(state._replace(dead=state.dead | {rank}))
        if self.alarms and not state.alarm and any(key.startswith("p/1/") for key in store):
            # The watch of a rank that made another call ends the round for those that wait.
            told = {"p/1/verdict": DIVERGED} | store
            found.append(state._replace(store=frozenset(told.items()), alarm=True))
        return found

    def at_once(
        self, store: dict[str, str], rank: int, heard: tuple[Any, ...]
    ) -> tuple[dict[str, str], tuple[Any, ...]]:
        """Make what a rank does next on its board, if no other order shows anything else.

        What a speaker posts only itself reads. What it publishes the others may overlook for as long as they like.
        """
        while isinstance(wanted := self.now(rank, heard), Operation) and (
            wanted.name in ("publish", "speak") or (wanted.name == "post" and self.parts[rank].is_speaker)
        ):
            [(store, answer)] = self.results_on_board(store, self.parts[rank], wanted)
            heard = (*heard, answer)
        return store, heard

    def results(
        self, state: State, store: dict[str, str], rank: int, wanted: Operation
    ) -> list[tuple[dict[str, str], Any]]:
        """Return (store afterwards, answer) for each way in which an operation may end; none while it waits."""
        match wanted:
            case Operation("set", (key, value)):
                return [(store | {key: value}, None)]
            case Operation("check", (keys,)):
                return [(store, all(key in store for key in keys))]
            case Operation("wait", (keys, *verdict)):
                if all(key in store for key in keys):
                    return [(store, True)]
                if any(key in store for key in verdict):
                    return [(store, False)]
                return [] if self.is_patient(state, rank) else [(store, False)]
            case Operation("listen", (number, key)):
                text = store.get(f"board/{number}/all of {self.parts[rank].hosts.neighbours[0]}")
                shown = {text} if text is not None else set()
                is_over = key in store or not self.is_patient(state, rank)
                return [(store, one) for one in shown | ({""} if is_over else set())]
            case Operation("read", (keys,)):
                return [(store, tuple(store[key].encode() for key in keys))]
            case Operation("claim", (key, value)):
                changed = {key: value} | store
                return [(changed, changed[key].encode())]
            case Operation("peek", (key,)):
                return [(store, store.get(key, "").encode())]
            case Operation("keys"):
                return [(store, frozenset(store))]
        return self.results_on_board(store, self.parts[rank], wanted)

    def is_patient(self, state: State, rank: int) -> bool:
        """Whether the rank waits for ever: in its last call, if nothing went wrong that others cannot make good."""
        return self.in_last_call(rank, state.heard[rank]) and not state.dead and not state.alarm

    def results_on_board(
        self, store: dict[str, str], part: Part, wanted: Operation
    ) -> list[tuple[dict[str, str], Any]]:
        """Return the same for an operation on the board of the rank's host; who waits there may give up at any time."""
        match wanted:
            case Operation("post", (number, text)):
                return [(store | {f"board/{number}/{part.rank}": text}, None)]
            case Operation("gather", (number,)):
                keys = {rank: f"board/{number}/{rank}" for rank in part.hosts.neighbours}
                all_came = all(key in store for key in keys.values()) and part.rank not in self.no_board
                found = [Texts({rank: store[key] for rank, key in keys.items()})] if all_came else []
                return [(store, texts) for texts in (Texts(), *found)]
            case Operation("speak", (number,)):
                return [(store | {f"board/{number}/spoken by {part.rank}": "yes"}, None)]
            case Operation("spoken", (number,)):
                has_spoken = f"board/{number}/spoken by {part.hosts.neighbours[0]}" in store
                return [(store, shown) for shown in {False, has_spoken}]
            case Operation("publish", (number, text)):
                return [(store | {f"board/{number}/all of {part.hosts.neighbours[0]}": text}, None)]
            case Operation("settle", (number, text)):
                stands = "board/closed" not in store
                return [(store | {f"board/{number}/settled": text} if stands else store, stands)]
            case Operation("settled", (number,)):
                text = store.get(f"board/{number}/settled", "")
                return [(store, shown) for shown in {"", text}]
            case Operation("close", (number,)):
                settled = store.get(f"board/{number}/settled")
                return [(store if settled else store | {"board/closed": "yes"}, settled)]
            case Operation("published", (number,)):
                text = store.get(f"board/{number}/all of {part.hosts.neighbours[0]}", "")
                return [(store, shown) for shown in {"", text}]
        raise AssertionError(wanted)

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


@pytest.mark.parametrize("case", [case for case, lives in LIVES.items() if len(lives) == 2 and case != "two calls"])
def test_two_ranks_of_one_host_come_level_too(case):
    """The same where ranks share a host, whether they find on its board what they wait for or not."""
    states, kinds = judge(Model(LIVES[case], ((0, 1),)))
    assert states > 30
    assert kinds >= {"ok"}


SINGLE = {
    "all come": [["a"], ["a"], ["a"]],
    "one never comes": [["a"], ["a"], []],
    "one declines": [["a"], ["a"], ["no a"]],
    "the leader declines": [["no a"], ["a"], ["a"]],
}


@pytest.mark.parametrize("hosts", [((0, 1), (2,)), ((0,), (1, 2)), ((0, 1, 2),)], ids=str)
@pytest.mark.parametrize("case", SINGLE)
def test_three_ranks_on_hosts_have_one_outcome(case, hosts):
    """Three ranks on one or two hosts, in one call: nobody goes on while another raises, and nobody waits for ever."""
    states, _ = judge(Model(SINGLE[case], hosts))
    assert states > 30


HOSTS = {2: ((0, 1),), 3: ((0,), (1, 2))}
TROUBLED = {
    "two ranks": [["a", "b"], ["a", "b"]],
    "the other declines": [["a", "b"], ["no a", "b"]],
    "three ranks": [["a"], ["a"], ["a"]],
}


@pytest.mark.parametrize("case", TROUBLED)
def test_a_rank_may_die_at_any_step(case):
    """The others still have one outcome a call, and none waits for ever, also where ranks share a host."""
    for hosts in ((), HOSTS[len(TROUBLED[case])]):
        _, kinds = judge(Model(TROUBLED[case], hosts, deaths=1))
        assert "timeout" in kinds


@pytest.mark.parametrize("case", ["two ranks", "three ranks"])
def test_an_alarm_may_be_answered_at_any_step(case):
    """Whoever is in the round that a watch ended hears the same, and nobody goes on in it; on a host too."""
    for hosts in ((), HOSTS[2]) if case == "two ranks" else ((),):
        _, kinds = judge(Model(TROUBLED[case], hosts, alarms=True))
        assert "diverged" in kinds


SHARDS = ((0,), (1, 2))
IN_SHARDS = {
    "all come": [["a"], ["a"], ["a"]],
    "one of a shard never comes": [["a"], ["a"], []],
    "a collector never comes": [["a"], [], ["a"]],
    "the leader never comes": [[], ["a"], ["a"]],
    "one of a shard skips": [["a", LAST], ["a", LAST], [LAST]],
    "a collector skips": [["a", LAST], [LAST], ["a", LAST]],
    "one of a shard declines": [["a"], ["a"], ["no a"]],
    "a collector declines": [["a", LAST], ["no a", LAST], ["a", LAST]],
    "the leader declines": [["no a"], ["a"], ["a"]],
}


@pytest.mark.parametrize("case", IN_SHARDS)
def test_shards_have_one_outcome_and_come_level(case):
    """Ranks that hear a copy of the verdict obey what stands, whoever does not come, and none waits for ever."""
    states, kinds = judge(Model(IN_SHARDS[case], shards=SHARDS))
    assert states > 30
    assert kinds >= {"timeout"}
    assert ("ok" in kinds) == (case == "all come" or LAST in IN_SHARDS[case][0])


def test_any_rank_of_any_shard_may_die():
    """Also one that collects, with the posts of its shard in its hands: the others wait no longer than their time."""
    _, kinds = judge(Model(IN_SHARDS["all come"], shards=SHARDS, deaths=1))
    assert kinds == {"ok", "timeout"}


def test_an_alarm_may_be_answered_in_shards():
    """Who answered need not tell the shards: those who collect do, and all the others look when their time is up."""
    _, kinds = judge(Model(IN_SHARDS["all come"], shards=SHARDS, alarms=True))
    assert kinds == {"ok", "timeout", "diverged"}


HOSTS_IN_SHARDS = {
    "no board on one host": ([["a"], ["a"], ["a"]], ((0,), (1, 2)), ((0,), (1,)), (1, 2)),
    "a speaker that collects never comes": ([["a"], ["a"], [], ["a"]], ((0, 1), (2, 3)), ((0,), (2,)), ()),
    "one of another host never comes": ([["a"], ["a"], ["a"], []], ((0, 1), (2, 3)), ((0,), (2,)), ()),
}


@pytest.mark.parametrize("case", HOSTS_IN_SHARDS)
def test_hosts_in_shards_have_one_outcome(case):
    """Boards, speakers and shards together."""
    lives, hosts, shards, no_board = HOSTS_IN_SHARDS[case]
    _, kinds = judge(Model(lives, hosts, shards=shards, no_board=no_board))
    assert kinds == ({"timeout"} if "never" in case else {"ok", "timeout"})
