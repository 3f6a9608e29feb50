"""Ranks compare what they are about to do: they all go on, or they all raise the same."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from support.giving_up import give_up
from support.processes import python

from tracehook.agreement import store_worker
from tracehook.agreement.agreement import Agreement
from tracehook.agreement.verdicts import RoundVerdict
from tracehook.errors import RegistrationError, RegistrationFailed, RegistrationMismatch, RegistrationTimeout
from tracehook.log import threads

PATIENCE = 20.0  # seconds after which something that should have happened has not
SHORT = 0.2  # a deadline that is meant to pass
ABOUT = "communicator 35fbbc443ced2476 (group tp)"
CHANNEL = "35fbbc443ced2476/windows"
RANK_0_CAME, RANK_1_CAME = f"tracehook/{CHANNEL}/1/0", f"tracehook/{CHANNEL}/1/1"  # keys of a first round
KINDS = ["hash", "tcp", "file", "prefix"]


def _tcp() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))


@pytest.fixture(params=["hash"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> dist.Store:
    """Return a store; a HashStore, unless a test asks for others."""
    makers: dict[str, Callable[[], dist.Store]] = {
        "hash": dist.HashStore,
        "tcp": _tcp,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), -1),
        "prefix": lambda: dist.PrefixStore("default_pg", dist.PrefixStore("0", _tcp())),
    }
    return makers[request.param]()


every_store = pytest.mark.parametrize("store", KINDS, indirect=True)


def _ranks(store: Any, ranks: int, channel: str = CHANNEL) -> list[Agreement]:
    return [Agreement(store, channel, rank, ranks, ABOUT) for rank in range(ranks)]


def _outcome(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a call returns, or what it raises."""
    try:
        return function(*given)
    except Exception as problem:
        return problem


def _together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make one call for each rank at the same time; return their outcomes."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result() for made in [pool.submit(_outcome, call) for call in calls]]


def _compare(members, wishes, timeout=PATIENCE, topic="windows"):
    return _together(
        [partial(member.compare, topic, wish, timeout) for member, wish in zip(members, wishes, strict=True)]
    )


def _confirm(members: Sequence[Agreement], failures: Sequence[str]) -> list[Any]:
    each = zip(members, failures, strict=True)
    return _together([partial(member.confirm, "windows", failure, PATIENCE) for member, failure in each])


def _one(outcomes: Sequence[Any], kind: type[Exception]) -> str:
    """Return the text that all of the outcomes share, which are of one kind; without what to do now."""
    assert [type(outcome) for outcome in outcomes] == [kind] * len(outcomes)
    ((text, told),) = {(outcome.text, str(outcome)) for outcome in outcomes}
    assert told.startswith(text)
    return str(text)


class Scripted:
    """A store that a test can get in the way of: what `before` has for an operation is called then."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.before: dict[str, Callable[..., Any]] = {}
        self.clones = 0

    def clone(self) -> Scripted:
        """Take note."""
        self.clones += 1
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*given: Any) -> Any:
            if name in self.before:
                self.before[name](*given)
            return getattr(self.store, name)(*given)

        return operation


@pytest.fixture
def scripted(store: dist.Store) -> Scripted:
    """Return what rank 0 takes for the store."""
    return Scripted(store)


@pytest.fixture
def pair(store: dist.Store, scripted: Scripted) -> tuple[Agreement, Agreement]:
    """Return rank 0, whose store is scripted, and rank 1."""
    return Agreement(scripted, CHANNEL, 0, 2, ABOUT), Agreement(store, CHANNEL, 1, 2, ABOUT)


# --- agreeing ---


@pytest.mark.parametrize(
    ("store", "ranks"), [*((kind, ranks) for kind in KINDS for ranks in (2, 5)), ("hash", 64)], indirect=["store"]
)
def test_ranks_that_want_the_same_go_on(store, ranks):
    """Every rank returns, round after round, on every kind of store; a whole rack, too."""
    members = _ranks(store, ranks)
    for wish in (["a", "b"], [], ["ä 'quoted' \n line"]):
        assert _compare(members, [wish] * ranks) == [False] * ranks
    assert [member.rounds for member in members] == [3] * ranks


def test_a_group_of_one_asks_nobody():
    """A lone rank agrees with itself, raises its own failure, and does not touch the store."""
    (alone,) = _ranks(object(), 1)
    alone.compare("windows", ["a"], PATIENCE)
    alone.confirm("windows", "", PATIENCE)
    assert alone.common("windows", ["a"], PATIENCE) == ["a"]
    assert (alone.rounds, alone.trips) == (3, 0)
    with pytest.raises(RegistrationFailed, match="'windows' failed on rank 0: out of memory"):
        alone.confirm("windows", "out of memory", PATIENCE)


@pytest.mark.parametrize("ranks", [2, 16])
def test_the_trips_of_a_rank_do_not_grow_with_the_ranks(store, ranks):
    """In a round that goes well, a rank makes five operations on the store, and rank 0 seven."""
    members = _ranks(store, ranks)
    for _ in range(3):
        _compare(members, [["a"]] * ranks)
    before = [member.trips for member in members]
    for _ in range(10):
        _compare(members, [["a"]] * ranks)
    assert [member.trips - made for member, made in zip(members, before, strict=True)] == [70] + [50] * (ranks - 1)


def test_one_round_at_a_time(store, background, until):
    """A second thread waits for the round of the first, and then has one of its own."""
    here, there = _ranks(store, 2)
    calls = [background(here.compare, "windows", ["a"], PATIENCE) for _ in range(2)]
    until(lambda: here.rounds == 1)
    assert [call.returned() for call in calls] == [False, False]
    assert here.rounds == 1
    there.compare("windows", ["a"], PATIENCE)
    until(lambda: any(call.returned(0) for call in calls))
    assert sum(call.returned() for call in calls) == 1
    there.compare("windows", ["a"], PATIENCE)
    assert [call.result() for call in calls] == [False, False]
    assert here.rounds == 2


@pytest.mark.parametrize("store", ["tcp"], indirect=True)
def test_a_wait_does_not_block_other_users_of_the_store(store, background, until):
    """While a rank waits, torch can go on using the same store."""
    here, there = _ranks(store, 2)
    waiting = background(here.compare, "windows", ["a"], PATIENCE)
    until(lambda: store.check([RANK_0_CAME]))
    assert background(store.add, "of torch", 1).result() == 1
    assert not waiting.returned(0)
    there.compare("windows", ["a"], PATIENCE)


def test_the_time_limit_of_the_store_stays(store):
    """A HashStore cannot be cloned; ours leaves the limit of its other users alone."""
    store.set_timeout(timedelta(seconds=7))
    _compare(_ranks(store, 2), [["a"]] * 2, timeout=3.0)
    assert store.timeout == timedelta(seconds=7)


def test_a_store_without_a_clone_serves(store):
    """A store that has no clone is used itself."""

    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name == "clone":
                raise AttributeError(name)
            return getattr(store, name)

    assert _compare(_ranks(Plain(), 3), [["a"]] * 3) == [False] * 3


# --- disagreeing ---

MISMATCHES = {
    "one odd": ([["a", "b"], ["a", "c"], ["a", "b"], ["a", "b"]],
        "entry 2: ranks 0, 2, 3 want 'b'; the odd one out: rank 1 wants 'c'"),
    "leader odd": ([["x"], ["a"], ["a"], ["a"]], "entry 1: ranks 1-3 want 'a'; the odd one out: rank 0 wants 'x'"),
    "two odd": ([["a"], ["b"], ["a"], ["c"]],
        "entry 1: ranks 0, 2 want 'a'; the odd ones out: rank 1 wants 'b'; rank 3 wants 'c'"),
    "one of a rack odd": ([["a"]] * 40 + [["b"]] + [["a"]] * 23,
        "entry 1: ranks 0-39, 41-63 want 'a'; the odd one out: rank 40 wants 'b'"),
    "no majority": ([["a"], ["a"], ["b"], ["b"]], "entry 1: ranks 0, 1 want 'a'; ranks 2, 3 want 'b'"),
    "each another": ([[str(rank)] for rank in range(12)],
        "entry 1: " + "; ".join(f"rank {rank} wants '{rank}'" for rank in range(8)) + "; and 4 more wishes"),
    "first of several": ([["a", "b", "c"], ["a", "x", "y"], ["a", "b", "z"]],
        "entry 2: ranks 0, 2 want 'b'; the odd one out: rank 1 wants 'x'"),
    "order": ([["a", "b"], ["b", "a"]], "entry 1: rank 0 wants 'a'; rank 1 wants 'b'"),
    "one list ends": ([["a", "b"], ["a", "b"], ["a"]],
        "entry 2: ranks 0, 1 want 'b'; the odd one out: rank 2 wants nothing"),
    "one has nothing": ([[], ["a"], ["a"]], "entry 1: ranks 1, 2 want 'a'; the odd one out: rank 0 wants nothing"),
    "called nothing": ([["nothing"], []], "entry 1: rank 0 wants 'nothing'; rank 1 wants nothing"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("store", "case"),
    [*(("hash", case) for case in MISMATCHES), *((kind, "one odd") for kind in KINDS[1:])],
    indirect=["store"],
)
def test_ranks_that_differ_all_raise_the_same(store, case):
    """It names the communicator, the first differing entry, and who wants what; the next round is like any other."""
    wishes, told = MISMATCHES[case]
    members = _ranks(store, len(wishes))
    text = _one(_compare(members, wishes), RegistrationMismatch)
    assert text == f"{ABOUT}: the ranks differ at 'windows', {told}; nothing was registered or called"
    assert _compare(members, [["a"]] * len(wishes)) == [False] * len(wishes)


def test_ranks_at_different_points_all_raise_the_same(store):
    """Ranks that came for different things are told so, whatever their entries."""
    members = _ranks(store, 3)
    topics = ["windows", "windows", "placement"]
    outcomes = _together([partial(m.compare, t, ["a"], PATIENCE) for m, t in zip(members, topics, strict=True)])
    told = "ranks 0, 1 want to compare 'windows'; the odd one out: rank 2 wants to compare 'placement'"
    expected = f"{ABOUT}: the ranks are not at the same point: {told}; no rank goes on"
    assert _one(outcomes, RegistrationMismatch) == expected


def test_a_comparison_does_not_meet_a_confirmation(store):
    """A rank that confirms and one that compares are not at the same point, though the topic is one."""
    here, there = _ranks(store, 2)
    calls: list[Any] = [
        partial(here.compare, "windows", [""], PATIENCE),
        partial(there.confirm, "windows", "", PATIENCE),
    ]
    told = "rank 0 wants to compare 'windows'; rank 1 wants to confirm 'windows'"
    assert told in _one(_together(calls), RegistrationMismatch)


# --- confirming, and what all have in common ---


def test_success_everywhere_is_confirmed(store):
    """If all ranks succeeded, all go on, with the largest number that a rank had."""
    assert _confirm(_ranks(store, 3), ["", "", ""]) == [0] * 3
    members = _ranks(store, 3, "another")
    calls = [lambda rank=rank: members[rank].confirm("windows", "", PATIENCE, (), 10 + rank) for rank in range(3)]
    assert _together(calls) == [12] * 3


def test_a_failure_anywhere_is_raised_everywhere(store):
    """Every rank learns which ranks failed, and why."""
    outcomes = _confirm(_ranks(store, 5), ["", "out of memory", "", "no window", "out of memory"])
    told = "failed on ranks 1, 4: out of memory; on rank 3: no window; no rank uses what it is about"
    assert _one(outcomes, RegistrationFailed) == f"{ABOUT}: 'windows' {told}"
    reasons = {1: "out of memory", 4: "out of memory", 3: "no window"}
    assert [outcome.failures for outcome in outcomes] == [reasons] * 5


def test_what_all_ranks_have_in_common(store):
    """Every rank gets the entries that all have, in the order of rank 0."""
    members = _ranks(store, 3)
    wishes = [["c", "a", "b"], ["a", "b", "c", "d"], ["b", "c"]]
    outcomes = _together([partial(m.common, "segments", w, PATIENCE) for m, w in zip(members, wishes, strict=True)])
    assert outcomes == [["c", "b"]] * 3


# --- coming late, or not at all ---

ABSENCES = {
    "one": (4, [2], "rank 2 did not come"),
    "several": (6, [1, 3, 4, 5], "ranks 1, 3-5 did not come"),
    "leader": (3, [0], "rank 0 did not come"),
    "leader and another": (4, [0, 2], "ranks 0, 2 did not come"),
    "all others": (3, [0, 1], "ranks 0, 1 did not come"),
}


@pytest.mark.parametrize(
    ("store", "case"),
    [*(("hash", case) for case in ABSENCES), *((kind, "leader and another") for kind in KINDS[1:])],
    indirect=["store"],
)
def test_ranks_that_do_not_come_are_named(store, case, request):
    """All who came raise the same text in time; it and `missing` name those who did not."""
    ranks, absent, told = ABSENCES[case]
    waits: list[Any] = []
    if request.node.callspec.params["store"] == "file":
        store = Scripted(store)
        store.before["wait"] = lambda *given: waits.append(given)
    members = [member for rank, member in enumerate(_ranks(store, ranks)) if rank not in absent]
    begin = time.monotonic()
    outcomes = give_up(members, SHORT)
    assert time.monotonic() - begin >= SHORT
    text = _one(outcomes, RegistrationTimeout)
    assert text.startswith(f"{ABOUT}: {told} within the 0.2 s that rank ")
    assert text.endswith(" waited at 'windows'; nothing was registered or called")
    assert [outcome.missing for outcome in outcomes] == [tuple(absent)] * len(members)
    assert waits == [], "a FileStore looks at the time limit of its own wait once a second"


@every_store
@pytest.mark.parametrize("absent", [0, 1])
def test_who_comes_late_is_told_and_is_level_again_at_the_next_call(store, absent, background):
    """A late rank raises at once, though it has time, so that those who wait at the next round are not kept up."""
    members = _ranks(store, 3)
    in_time = [member for rank, member in enumerate(members) if rank != absent]
    (stood, _) = give_up(in_time, SHORT)
    again = [background(member.compare, "windows", ["b"], PATIENCE) for member in in_time]
    outcome = background(_outcome, members[absent].compare, "windows", ["a"], PATIENCE).result()
    assert isinstance(outcome, RegistrationTimeout)
    assert outcome.text == f"{ABOUT}: this rank (rank {absent}) came late itself. {stood.text}"
    assert outcome.missing == (absent,)
    members[absent].compare("windows", ["b"], PATIENCE)
    assert [call.result() for call in again] == [False, False]


# --- what stays behind ---


def _left(ranks: int) -> int:
    return ranks + 1 + 2  # the posts of the last round, how many came, the verdicts of the last two


def test_two_stores_have_two_tokens_where_the_program_repeats_its_ids(monkeypatch):
    """Programs make uuid repeat itself, so that their runs do."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=1))
    assert store_worker.token(dist.HashStore()) != store_worker.token(dist.HashStore())


@pytest.mark.parametrize("store", ["hash", "tcp"], indirect=True)
def test_keys_do_not_pile_up(store, until):
    """However many rounds there were, good or bad, the store soon holds the keys of the last two only."""
    members = _ranks(store, 3)
    before = store.num_keys()
    for number in range(12):
        _compare(members, [["a"], ["a"], ["b" if number % 4 == 1 else "a"]])
        until(lambda: store.num_keys() - before <= _left(3))
    until(lambda: store.num_keys() - before == _left(3))


@pytest.mark.parametrize("absent", [0, 1])
def test_keys_of_missed_rounds_go_when_all_have_met_again(store, absent, until):
    """A late rank still finds the verdicts that it missed; two rounds after it is back they are gone."""
    members = _ranks(store, 3)
    for _ in range(4):
        _compare([member for rank, member in enumerate(members) if rank != absent], [["a"]] * 2, SHORT / 4)
    for _ in range(4):
        _outcome(members[absent].compare, "windows", ["a"], PATIENCE)
    for _ in range(2):
        assert _compare(members, [["a"]] * 3) == [False] * 3
    until(lambda: store.num_keys() == _left(3))


def test_the_thread_goes_with_the_agreement(store, until):
    """An agreement that nobody holds any more leaves no thread behind."""

    def ours() -> set[threads.Thread]:
        return {thread for thread in threads.living() if thread.name == "tracehook-agreement"}

    before = ours()
    members = _ranks(store, 3)
    _compare(members, [["a"]] * 3)
    made = ours() - before
    assert len(made) == 3
    members.clear()
    until(lambda: not any(thread.is_alive() for thread in made))


# --- a store in trouble ---


@pytest.mark.parametrize(
    ("operation", "failure"),
    [
        ("set", dist.DistNetworkError),
        ("add", dist.DistNetworkError),
        ("wait", dist.DistStoreError),
        ("wait", RuntimeError),
        ("compare_set", RuntimeError),
    ],
)
def test_a_store_that_fails_is_told_in_one_line(store, scripted, pair, operation, failure, background, until):
    """Whatever fails, the error says what, what follows, and where to look; the next round has a new connection."""
    failing, other = pair
    scripted.before[operation] = Mock(side_effect=failure("Broken pipe\nframe #0: c10::Error"))
    comes_first = operation == "wait"  # who counts last does not wait
    if not comes_first:
        waiting = background(_outcome, other.compare, "windows", ["a"], SHORT)
        until(lambda: store.check([RANK_1_CAME]))
    with pytest.raises(RegistrationError) as raised:
        failing.compare("windows", ["a"], PATIENCE)
    assert type(raised.value) is RegistrationError
    assert raised.value.text == (
        f"{ABOUT}: the c10d store failed at 'windows' ({failure.__name__}: Broken pipe); on this rank nothing was "
        "registered or called. The process that holds the store (rank 0 of the job) has likely ended"
    )
    # Who fails after its post cannot know whether the others go on.
    found = _outcome(other.compare, "windows", ["a"], SHORT) if comes_first else waiting.result()
    assert isinstance(found, RegistrationTimeout) if operation == "set" else found is False
    scripted.before.clear()
    assert _compare([failing, other], [["a"]] * 2) == [False] * 2
    assert scripted.clones == 3, "the round asked twice"


@pytest.mark.parametrize("operation", ["set", "add", "wait", "compare_set"])
def test_a_store_that_fails_once_stops_nobody(scripted, pair, operation):
    """The operation is made once more, on another connection, and all ranks go on."""

    def fail(*_: Any) -> None:
        del scripted.before[operation]
        raise dist.DistNetworkError("Broken pipe")

    scripted.before[operation] = fail
    assert _compare(pair, [["a"]] * 2) == [False] * 2


def test_a_store_that_does_not_answer_is_given_up(scripted, pair, monkeypatch, background):
    """The deadline holds, but for a grace, even if an operation on the store never returns."""
    monkeypatch.setattr(store_worker, "GRACE", 0.3)
    stuck = threading.Event()
    scripted.before["set"] = lambda *_: stuck.wait(PATIENCE)
    leader, other = pair
    outcome = background(_outcome, leader.compare, "windows", ["a"], SHORT).result()
    assert "(RuntimeError: no answer within 0.3 s after the deadline)" in str(outcome)
    monkeypatch.setattr(store_worker, "GRACE", PATIENCE)
    assert isinstance(_outcome(other.compare, "windows", ["a"], SHORT), RegistrationTimeout)
    scripted.before.clear()
    assert _compare([leader, other], [["a"]] * 2) == [False] * 2
    stuck.set()


def test_a_round_that_was_given_up_cannot_reach_into_the_next(store, scripted, pair, monkeypatch, background, until):
    """What is left of a round whose caller has gone writes under the keys of that round only."""
    monkeypatch.setattr(store_worker, "GRACE", 0.0)
    stuck = threading.Event()
    scripted.before["set"] = lambda *_: stuck.wait(PATIENCE)
    leader, other = pair
    _outcome(leader.compare, "windows", ["a"], 0.05)
    scripted.before.clear()
    monkeypatch.setattr(store_worker, "GRACE", PATIENCE)
    leading = background(leader.compare, "windows", ["b"], PATIENCE)
    stuck.set()
    until(lambda: store.check([f"tracehook/{CHANNEL}/1/verdict"]))
    assert isinstance(_outcome(other.compare, "windows", ["a"], PATIENCE), RegistrationTimeout)
    other.compare("windows", ["b"], PATIENCE)
    assert leading.result() is False


def test_a_mistake_of_our_own_is_not_blamed_on_the_store(scripted, pair):
    """What is no error of the store comes out as it is."""
    scripted.before["set"] = Mock(side_effect=KeyError("ours"))
    with pytest.raises(KeyError):
        pair[0].compare("windows", [], PATIENCE)


def test_torch_is_not_imported():
    """The module can be had without torch."""
    assert python("import sys, tracehook.agreement.agreement; sys.exit('torch' in sys.modules)").status == 0


# --- level again ---


@pytest.mark.parametrize("absent", [0, 2])
def test_who_skipped_calls_that_an_alarm_ended_joins_the_newest_round(store, absent):
    """Those who were there raise at once, because the absent rank said so, and it still finds what it missed."""
    members = _ranks(store, 3)
    there = [member for rank, member in enumerate(members) if rank != absent]
    for number in range(4):
        answer = RoundVerdict("mismatch", "the absent rank made another call", position=(number,))
        store.set(f"{members[0].topology().prefix}/{number + 1}/verdict", answer.written())
        raised = _together([partial(one.compare, "windows", ["a"], PATIENCE, (number,)) for one in there])
        assert _one(raised, RegistrationMismatch) == answer.text
    outcomes = _together([partial(one.compare, "windows", ["b"], PATIENCE, (4,)) for one in members])
    assert outcomes == [False] * 3


@pytest.mark.parametrize("declining", [0, 1])
def test_who_declines_spares_the_others_the_wait(store, declining):
    """All that are at the call raise the reason at once; the rank itself goes on to the next round with them."""
    members = _ranks(store, 3)
    there = [member for rank, member in enumerate(members) if rank != declining]
    members[declining].decline("windows", "OutOfMemoryError: tried 2 GiB", PATIENCE, (1,))
    outcomes = _together([partial(one.compare, "windows", ["a"], PATIENCE, (1,)) for one in there])
    text = _one(outcomes, RegistrationFailed)
    told = f"rank {declining} could not go on: OutOfMemoryError: tried 2 GiB"
    assert text == f"{ABOUT}: {told}; nothing was registered or called"
    assert [outcome.failures for outcome in outcomes] == [{declining: "OutOfMemoryError: tried 2 GiB"}] * 2
    assert _compare(members, [["b"]] * 3) == [False] * 3


def test_no_further_round_when_the_ranks_can_no_longer_be_level(store):
    """An agreement that was ended says why, at once."""
    member = _ranks(store, 2)[0]
    member.ended = "rank 1 may be inside NCCL"
    with pytest.raises(RegistrationError, match="rank 1 may be inside NCCL"):
        member.compare("windows", ["a"], PATIENCE)


def test_an_act_of_another_kind_does_not_hear_of_a_call_that_was_declined(store):
    """A sync after a scope that one rank left by an exception, and that was nothing new elsewhere, finds all level."""
    members = _ranks(store, 3)
    members[1].decline("windows", "ValueError: no", PATIENCE, (0, 1))
    outcomes = _together([partial(one.compare, "sync", ["a"], PATIENCE, (0, 0)) for one in members])
    assert outcomes == [False] * 3
