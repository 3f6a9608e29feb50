"""Ranks that speak in the store are cut into shards, so that no key there has many readers."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from support.giving_up import give_up
from support.together import PATIENCE, compare, together

from tracehook.errors import RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.symmetric_memory import hosts, levels, lines
from tracehook.symmetric_memory.agreement import Agreement

ABOUT = "communicator c"
LONG = 240.0  # seconds of a deadline of which an eighth is more than lines.PATIENCE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard have three speakers."""
    monkeypatch.setattr(levels, "MOST", 3)


def _be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank with a deadline that is LONG wait on the board for however long the others are held up."""
    monkeypatch.setattr(lines, "PATIENCE", PATIENCE)
    monkeypatch.setattr(lines, "LONGEST_LISTENING", 3 * PATIENCE)


class Counting:
    """A store that notes who reads which key. `shared`: the ranks by key, of all ranks."""

    def __init__(self, store: dist.Store, rank: int, shared: dict[str, set[int]]) -> None:
        self.store = store
        self.rank = rank
        self.shared = shared

    def clone(self) -> Counting:
        """Return itself: a HashStore needs no connection."""
        return self

    def __getattr__(self, name: str) -> Any:
        def operation(*given: Any) -> Any:
            if name in ("check", "wait", "multi_get", "compare_set"):
                for key in [given[0]] if isinstance(given[0], str) else given[0]:
                    self.shared[key].add(self.rank)
            return getattr(self.store, name)(*given)

        return operation


def _members(ranks: int, per_host: int = 0, shared: dict[str, set[int]] | None = None) -> list[Agreement]:
    store, channel = dist.HashStore(), uuid.uuid4().hex
    return [
        Agreement(
            Counting(store, rank, shared) if shared is not None else store,  # type: ignore[arg-type]
            channel,
            rank,
            ranks,
            ABOUT,
            host=f"host {rank // per_host}" if per_host else "",
        )
        for rank in range(ranks)
    ]


def test_a_group_that_fits_into_one_shard_is_not_cut():
    """Its ranks deal with the leader, as they did before there were shards."""
    assert levels.seen_by(1, [[0], [1], [2]]) is None
    assert levels.seen_by(1, [[0, 1], [2, 3], [4, 5]]) is None


def test_each_rank_is_in_the_shard_of_its_speaker():
    """Also where the ranks of a host are not neighbours in the group: who collects waits for all whom others bring."""
    by_speaker = [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert levels.seen_by(8, by_speaker) == levels.Levels([0, 3], 0, [0, 1, 2], [0, 1, 2, 4, 5, 6, 8, 9])
    assert levels.seen_by(7, by_speaker) == levels.Levels([0, 3], 3, [3], [3, 7])


@pytest.mark.parametrize("ranks", [4, 7, 20])
@pytest.mark.parametrize("per_host", [0, 2])
def test_no_key_has_many_readers(ranks, per_host, monkeypatch):
    """In a round that goes well, a key is read by the ranks of a shard, or by the leader and those who collect."""
    _be_patient(monkeypatch)
    shared: dict[str, set[int]] = defaultdict(set)
    members = _members(ranks, per_host, shared)
    for _ in range(3):
        assert set(compare(members, timeout=LONG)) == {False}
    speakers = -(-ranks // per_host) if per_host else ranks
    assert max(len(readers) for readers in shared.values()) <= 3 + -(-ranks // 3)
    shared.clear()
    assert set(compare(members, timeout=LONG)) == {False}
    assert max(len(readers) for readers in shared.values()) <= 3 + -(-speakers // 3)


@pytest.mark.parametrize("odd", range(7))
def test_ranks_differ_in_shards(odd):
    """Whichever rank wants something else is named on all ranks, and the next round is right."""
    members = _members(7)
    wishes = ["b" if rank == odd else "a" for rank in range(7)]
    found = together(
        [lambda m=m, w=w: m.compare("windows", [w], PATIENCE) for m, w in zip(members, wishes, strict=True)]
    )
    assert {type(problem) for problem in found} == {RegistrationMismatch}
    assert len({str(problem) for problem in found}) == 1
    assert f"rank {odd} wants 'b'" in str(found[0])
    assert set(compare(members)) == {False}


@pytest.mark.parametrize("per_host", [0, 2])
@pytest.mark.parametrize("missing", range(8))
def test_a_rank_that_does_not_come_is_named(missing, per_host):
    """Also one that collects for others: all hear it in time, itself when it comes, and all come level again."""
    members = _members(8, per_host)
    assert set(compare(members)) == {False}
    came = [member for rank, member in enumerate(members) if rank != missing]
    found = give_up(came, 1.0)
    assert {tuple(problem.missing) for problem in found} == {(missing,)}
    assert isinstance(compare([members[missing]])[0], RegistrationTimeout)
    assert set(compare(members)) == {False}


@pytest.mark.parametrize("who", range(7))
def test_a_rank_that_declines_spares_all_shards_the_wait(who):
    """Also one that collects for others, whom its shard then never sees in that round."""
    members = _members(7)
    begin = time.monotonic()
    calls: list[Any] = [lambda m=m: m.compare("windows", ["a"], PATIENCE, (1,)) for m in members]
    calls[who] = lambda: members[who].decline("windows", "no memory", PATIENCE, (1,))
    found = together(calls)
    assert time.monotonic() - begin < PATIENCE / 2
    found.pop(who)
    assert {type(problem) for problem in found} == {RegistrationFailed}
    assert set(compare(members)) == {False}


def test_keys_of_shards_do_not_pile_up(until):
    """What stays are the verdict of the last round or two with its copies, and where the leader is."""
    members = _members(7)
    store = members[0]._lines.store
    for _ in range(6):
        assert set(compare(members)) == {False}
    until(lambda: store.num_keys() <= 1 + 6 + 2 + 2 * 3)  # the leader, posts and shards of the last round, verdicts
    held = store.num_keys()
    for _ in range(6):
        assert set(compare(members)) == {False}
    until(lambda: store.num_keys() <= held)


def test_a_rank_that_was_interrupted_learns_what_the_others_know(monkeypatch):
    """It reads how the round ended, because the ranks of a host and of a shard have to know alike who they are."""
    members = _members(8, 2)
    stopped = members[5]
    carry_out = stopped._lines.carry_out

    def interrupted(task: Any) -> Any:
        carry_out(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(stopped._lines, "carry_out", interrupted)

    def outcome() -> Any:
        try:
            return stopped.compare("windows", ["a"], PATIENCE)
        except KeyboardInterrupt:
            return "interrupted"

    calls: list[Any] = [lambda m=m: m.compare("windows", ["a"], PATIENCE) for m in members]
    calls[5] = outcome
    assert together(calls) == [False] * 5 + ["interrupted"] + [False] * 2
    assert list(stopped.neighbours) == []
    monkeypatch.setattr(stopped._lines, "carry_out", carry_out)
    assert set(compare(members)) == {False}
    assert list(stopped.neighbours) == [4, 5]


# --- one voice for each host, also where it takes long ---


def test_ranks_whose_speaker_waits_make_no_operation_on_the_store(background, monkeypatch, until):
    """While a rank of another host is late, only the first rank of a host is in the store for it."""
    _be_patient(monkeypatch)
    members = _members(6, 2)
    for _ in range(2):
        assert set(compare(members, timeout=LONG)) == {False}
    looks: Counter[int] = Counter()  # by rank: at the board, and the first one is as long as a rank has patience

    def look(rank: int, board: hosts.Board, published: Any, number: int, patience: float) -> Any:
        if not looks[rank]:
            until(lambda: board.has_spoken(number))
        looks[rank] += 1
        return published(number, min(patience, hosts.PATIENCE))

    for rank in (1, 3):
        board = members[rank]._board
        monkeypatch.setattr(board, "published", partial(look, rank, board, board.published))
    before = [member.trips for member in members]
    calls = [background(member.compare, "windows", ["a"], LONG) for member in members[:5]]
    until(lambda: looks[1] > 5 and looks[3] > 5)
    assert not any(call.returned(0) for call in calls)
    members[5].compare("windows", ["a"], LONG)
    assert [call.result() for call in calls] == [False] * 5
    assert [member.trips > earlier for member, earlier in zip(members, before, strict=True)][:4] == [True, False] * 2


def test_ranks_whose_speaker_died_look_into_the_store(background, monkeypatch):
    """A speaker that shows no verdict on the board keeps nobody: the others find the verdict in the store."""
    members = _members(4, 2)
    assert set(compare(members)) == {False}
    monkeypatch.setattr(members[2]._board, "publish", lambda *_: None)
    late = threading.Timer(1.0, members[1].compare, ("windows", ["a"], PATIENCE))
    late.start()
    calls = [background(members[rank].compare, "windows", ["a"], PATIENCE) for rank in (0, 2, 3)]
    assert [call.result() for call in calls] == [False] * 3
    late.join()


def test_the_hosts_of_many_ranks_are_a_short_text():
    """Every rank reads it, so that it may not grow with the ranks where they follow a pattern."""
    for numbers in ([rank // 8 for rank in range(16384)], [rank % 2048 for rank in range(16384)], [0, 1, 0, 2], []):
        assert hosts.unpacked(hosts.packed(numbers)) == numbers
        assert len(hosts.packed(numbers)) < 400


@pytest.mark.parametrize("seed", range(8))
def test_random_hosts_shards_and_delays(seed):
    """Whoever comes late, declines or wants something else: one outcome on all ranks, and a last call that succeeds."""
    rng = random.Random(seed)
    ranks = rng.randint(5, 12)
    members = _members(ranks, rng.choice([0, 1, 2, 3]))
    assert set(compare(members)) == {False}
    for position in range(1, 7):
        declining, odd, late = (rng.randrange(ranks) if rng.random() < 0.3 else None for _ in range(3))
        delays = [rng.choice([0, 0, 0, 0.01, 0.05, 0.4]) for _ in range(ranks)]
        timeout = 0.5 if late is not None else PATIENCE

        def call(rank: int) -> Any:
            time.sleep(delays[rank] + 1.5 * (rank == late))  # noqa: B023
            if rank == declining:  # noqa: B023
                return members[rank].decline("windows", "no", PATIENCE, (position,))  # noqa: B023
            return members[rank].compare("windows", ["ab"[rank == odd]], timeout, (position,))  # noqa: B023

        found = together([lambda rank=rank: call(rank) for rank in range(ranks)])
        told = {str(one).split("came late itself. ")[-1] for rank, one in enumerate(found) if rank != declining}
        assert len(told) == 1, (position, told)
    for member in members:
        assert member.rounds >= 7
    assert set(compare(members)) == {False}
