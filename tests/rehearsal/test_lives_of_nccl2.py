"""How communicators begin, change and end through torch: where torch registers by itself, and where tracehook does."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.rehearsal import QUICK, Rehearsal, rehearse
from support.torch_versions import BY_ITSELF, LEGACY, needs_nccl2
from torch.distributed import distributed_c10d

needs_suspend = pytest.mark.skipif(
    not hasattr(distributed_c10d.ProcessGroupNCCL, "suspend"), reason="this torch cannot suspend a group"
)
NCCL2 = pytest.param("nccl", id="nccl2", marks=needs_nccl2)
lazily = pytest.mark.parametrize("backend", [pytest.param(name, marks=needs_nccl2) for name in ("nccl", "nccl-lazy")])
both = pytest.mark.parametrize("backend", [NCCL2, pytest.param(LEGACY, id="stock")])

WATCHDOG: dict[str, Any] = QUICK | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}  # after which the process goes on
Pairs = Counter[tuple[int, int]]


def play(
    log: Path, case: str, backend: str = "nccl", ranks: int = 2, verdict: tuple[int, str] | None = None, **env: str
) -> Rehearsal:
    """Run a case: all segments were registered with all communicators of their time, and no more.

    `verdict`: status and words of the audit. By default it is clean, but for what torch registers in vain.
    """
    changes = {"TORCH_DIST_USE_NCCL2": "1", "SYMM_REGISTER_TIMEOUT": "20", **env}
    run = rehearse("lives.py", case, backend, ranks=ranks, log=log, env=changes, timeout=150).assert_good()
    local = "observed" if BY_ITSELF and backend != LEGACY else "own"
    for rank, facts in enumerate(run.told):
        assert (facts["end"], facts["freed"], facts["left"]) == ("reached", True, 0), run.output
        told = [row for fact in facts.values() if isinstance(fact, dict) for row in fact.get("live", [])]
        logged = [event.get("local", "own") for event in run.events("communicator.pending", rank)]
        assert {*told, *logged} == {local}
        assert_registered(run, rank, by_torch=local == "observed")
    if verdict is None and local == "observed":
        Audit.expect_only_in_vain(log)
    else:
        Audit(log).expect(*(verdict or (CLEAN, "Clean: ")))
    return run


def assert_registered(run: Rehearsal, rank: int, by_torch: bool) -> None:
    """Hold what the log has of registrations against the lives in it, and against what NCCL counted."""
    facts, made, undone = run.facts(rank), pairs(run, "register.local", rank), pairs(run, "deregister.local", rank)
    assert made == Counter(contemporaries(run, rank, asleep=by_torch))
    assert undone <= made
    assert (made.total(), undone.total()) == (facts["made"], facts["undone"])
    left = Counter(comm for _, comm in (made - undone).elements())
    dropped = {event["comm_id"]: event["registrations"] for event in run.events("communicator.abort", rank)}
    assert left == Counter(dropped), "what is not undone went with an aborted communicator"
    assert not (by_torch and left), "torch undoes its registrations before it aborts"


def pairs(run: Rehearsal, name: str, rank: int) -> Pairs:
    """Return how often each segment was in such an event with each communicator."""
    return Counter((event["segment"], event["comm_id"]) for event in run.events(name, rank))


def contemporaries(run: Rehearsal, rank: int, asleep: bool) -> set[tuple[int, int]]:
    """Return all pairs of a segment and a communicator of its device that lived at the same time.

    `asleep`: also if the communicator was suspended all that time, in which tracehook registers nothing.
    """
    ends = {"communicator.retire", "communicator.abort"}
    sleeps, wakes = (set(), set()) if asleep else ({"communicator.suspend"}, {"communicator.resume"})
    segments = lives(run, rank, "segment", {"segment.alloc"}, {"segment.free"})
    communicators = lives(run, rank, "comm_id", {"communicator.pending"} | wakes, ends | sleeps)
    return {
        (segment, comm)
        for segment, where, born, freed in segments
        for comm, device, made, ended in communicators
        if where == device and born < ended and made < freed
    }


def lives(run: Rehearsal, rank: int, name: str, births: set[str], ends: set[str]) -> list[tuple[int, int, int, int]]:
    """Return of each life of a thing called `name` its device, and the numbers of the events that begin and end it."""
    begun: dict[int, tuple[int, int]] = {}
    found = []
    for event in run.log(rank).events:
        if event["event"] in births:
            begun[event[name]] = (event["device"], event["seq"])
        elif event["event"] in ends and event[name] in begun:
            found.append((event[name], *begun.pop(event[name]), event["seq"]))
    return found + [(one, *begin, sys.maxsize) for one, begin in begun.items()]


def assert_worked(
    run: Rehearsal, name: str, ranks: Sequence[int], live: int, among: Sequence[int] = (), scopes: bool = True
) -> None:
    """Assert that sums over `among` (or `ranks`) and memory were right on `ranks`, with `live` communicators there."""
    total = sum(2.0**rank for rank in among or ranks)
    for rank in ranks:
        found = run.facts(rank)[name]
        assert (found["sum"], found["memory"], len(found["live"])) == (total, True, live), found
        assert found.get("symmetric") == ([True, total] if scopes else None), found


def assert_calls(run: Rehearsal, ranks: Sequence[int], **calls: int) -> None:
    """Assert which calls of communicators' lives torch made on these ranks."""
    assert [run.facts(rank)["calls"] for rank in ranks] == [calls] * len(ranks)


@both
def test_abort(tmp_path: Path, backend: str) -> None:
    """After the abort of a group the default group works; after that of all groups memory still comes and goes."""
    run = play(tmp_path, "aborted", backend)
    assert_worked(run, "group", [0, 1], live=2)
    assert_worked(run, "world", [0, 1], live=1)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Abort=2)


@both
def test_abort_ends_a_collective_that_hangs(tmp_path: Path, backend: str) -> None:
    """A backend that is aborted in the midst of a collective leaves nothing behind, and the other group works."""
    run = play(tmp_path, "aborted_while_it_hangs", backend)
    assert_worked(run, "world", [0, 1], live=1)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Abort=1, Destroy=1)


@both
def test_the_watchdog_aborts(tmp_path: Path, backend: str) -> None:
    """What the watchdog's thread aborts is dead for the thread that allocates."""
    run = play(tmp_path, "aborted_by_the_watchdog", backend, **WATCHDOG)
    assert_worked(run, "world", [0], live=1, among=[0, 1])
    assert_worked(run, "world", [1], live=2, among=[0, 1])
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Abort=2)


@both
def test_a_scope_on_an_aborted_group(tmp_path: Path, backend: str) -> None:
    """It is refused with the reason, and makes no communicator."""
    run = play(tmp_path, "aborted_and_asked", backend)
    for rank in (0, 1):
        assert "it was aborted, or is being destroyed" in run.facts(rank)["refused"]
    assert_worked(run, "world", [0, 1], live=1)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Abort=1, Destroy=1)


@pytest.mark.parametrize("job", ["aborted_unbound", "aborted_unbound_without_windows"])
def test_a_scope_on_an_aborted_group_that_is_bound_to_no_device(tmp_path: Path, job: str) -> None:
    """It is refused as well, whether the group had windows before or not, and makes no communicator."""
    run = play(tmp_path, job, LEGACY)
    for rank in (0, 1):
        assert "it was aborted, or is being destroyed" in run.facts(rank)["refused"]
        assert "it was aborted, or is being destroyed" in run.facts(rank)["explained"]
    assert_worked(run, "world", [0, 1], live=1, scopes=job == "aborted_unbound")
    assert_calls(run, [0, 1], InitRankConfig=1, Abort=1)


def test_a_scope_on_a_group_that_was_used_on_another_device(tmp_path: Path) -> None:
    """A collective before `set_device` does not make the group look aborted: the scope has its own device's made."""
    run = play(tmp_path, "used_on_another_device", LEGACY)
    assert_worked(run, "world", [0, 1], live=2)
    assert_calls(run, [0, 1], InitRankConfig=2, Destroy=2)


@both
def test_shutdown(tmp_path: Path, backend: str) -> None:
    """A group that was shut down has no registrations, and to shut it down again or destroy it does nothing more."""
    run = play(tmp_path, "shut_down", backend)
    assert_worked(run, "group", [0, 1], live=2)
    for name in ("world", "again"):
        assert_worked(run, name, [0, 1], live=1)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Destroy=2)


@both
def test_split(tmp_path: Path, backend: str) -> None:
    """A split, and a split of it that outlives it, have all segments; a rank that is in none has no communicator."""
    run = play(tmp_path, "split", backend, ranks=3)
    for name in ("first", "second"):
        assert_worked(run, name, [0, 1], live=2)
    assert_worked(run, "all", [0, 1], live=2, among=[0, 1, 2])
    assert_worked(run, "all", [2], live=1, among=[0, 1, 2])
    assert {run.facts(rank)["second_rank"] for rank in (0, 1)} == {0, 1}
    assert_calls(run, [0, 1], InitRankConfig=1, Split=2, Destroy=3)
    assert_calls(run, [2], InitRankConfig=1, Split=1, Destroy=1)


@both
def test_shrink_of_the_default_group(tmp_path: Path, backend: str) -> None:
    """The ranks that remain work under new numbers, also with windows; all older communicators are ended."""
    run = play(tmp_path, "shrunk_default", backend, ranks=3)
    assert_worked(run, "world", [0, 1, 2], live=2)
    assert_worked(run, "fewer", [0, 2], live=1)
    assert [run.facts(rank)["rank"] for rank in (0, 2)] == [0, 1]
    assert_calls(run, [0, 2], InitRankConfig=1, Split=1, Shrink=1, Abort=1, Destroy=2)
    assert_calls(run, [1], InitRankConfig=1, Split=1, Abort=2)


@both
def test_shrink_while_a_collective_hangs(tmp_path: Path, backend: str) -> None:
    """With the flag that ends the group's work, its registrations are undone as with any other group that ends."""
    run = play(tmp_path, "shrunk_while_it_hangs", backend, ranks=3)
    assert_worked(run, "fewer", [0, 1], live=2)
    assert_worked(run, "world", [0, 1], live=2, among=[0, 1, 2])
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Shrink=1, Destroy=3)


@both
def test_shrink_that_ends_work_with_windows(tmp_path: Path, backend: str) -> None:
    """The windows of the old communicator are undone too."""
    run = play(tmp_path, "shrunk_with_windows", backend, ranks=3)
    assert_worked(run, "fewer", [0, 1], live=2)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Shrink=1, Destroy=3)


@needs_suspend
@both
def test_suspend(tmp_path: Path, backend: str) -> None:
    """A group that rested goes on with its registrations and windows."""
    run = play(tmp_path, "suspended", backend)
    for name in ("before", "after"):
        assert_worked(run, name, [0, 1], live=2)
    assert [run.facts(rank)["kept"] for rank in (0, 1)] == [[True, 3.0]] * 2
    assert_calls(run, [0, 1], InitRankConfig=1, Split=1, Suspend=1, Resume=1, Destroy=2)


@needs_suspend
@both
def test_memory_of_a_suspended_group(tmp_path: Path, backend: str) -> None:
    """Segments come and go while a group rests, and a group may end while it does."""
    run = play(tmp_path, "suspended_and_used", backend)
    assert [run.facts(rank)["memory"] for rank in (0, 1)] == [True, True]
    assert_worked(run, "after", [0, 1], live=2)
    assert_calls(run, [0, 1], InitRankConfig=1, Split=2, Suspend=2, Resume=1, Destroy=3)


@needs_nccl2
def test_reconfigure(tmp_path: Path) -> None:
    """A group that gains and loses ranks has a new communicator each time, with all segments; it never grows one."""
    run = play(tmp_path, "reconfigured", ranks=3)
    assert [run.facts(rank)["before"] for rank in (0, 1, 2)] == [0, 0, 0]
    for number, members in enumerate(([0, 1], [0, 1, 2], [0, 1, 2], [1, 2])):
        assert_worked(run, f"generation{number}", members, live=1, scopes=False)
    assert_calls(run, [1], InitRankConfig=4, Abort=3, Destroy=1)
    assert_calls(run, [0, 2], InitRankConfig=3, Abort=2, Destroy=1)


@needs_nccl2
def test_scopes_after_reconfigure(tmp_path: Path) -> None:
    """Windows of a former communicator are forgotten, and scopes make new ones."""
    run = play(tmp_path, "reconfigured_in_place")
    for number in range(3):
        assert_worked(run, f"generation{number}", [0, 1], live=1)


@needs_nccl2
def test_scopes_under_a_new_rank(tmp_path: Path) -> None:
    """Ranks that have other numbers than before agree as those that they are now."""
    run = play(tmp_path, "reconfigured_with_fewer", ranks=3, SYMM_REGISTER_TIMEOUT="8")
    assert [run.facts(rank)["refused"] for rank in (1, 2)] == [""] * 2
    assert_worked(run, "fewer", [1, 2], live=1)


@needs_nccl2
def test_scopes_with_a_rank_that_came_later(tmp_path: Path) -> None:
    """Nothing is agreed on without it: other sizes of it are an error on all ranks."""
    found = (FINDINGS, "agreement-mismatch")
    run = play(tmp_path, "reconfigured_with_more", ranks=3, verdict=found, SYMM_REGISTER_TIMEOUT="8")
    for rank in (0, 1, 2):
        assert run.facts(rank)["refused"].startswith("RegistrationMismatch: "), run.output


@needs_nccl2
def test_revoke(tmp_path: Path) -> None:
    """A communicator that torch revokes is dead at once; memory comes and goes, and the group is made anew."""
    run = play(tmp_path, "revoked")
    facts = run.facts(0)
    assert (facts["during"], facts["memory"]) == (0, True)
    assert "timed out" in facts["refused"]
    assert_worked(run, "after", [0, 1], live=1)
    assert_calls(run, [0], InitRankConfig=2, Revoke=1, Abort=1, Destroy=1)
    assert_calls(run, [1], InitRankConfig=2, Abort=1, Destroy=1)


@needs_nccl2
def test_pairs(tmp_path: Path) -> None:
    """Communicators that a first send makes have all segments; suspend and abort reach those that they belong to."""
    run = play(tmp_path, "lazy", "nccl-lazy")
    for name, live in (("before", 1), ("pair", 2), ("split", 3), ("after", 2)):
        assert_worked(run, name, [0, 1], live=live)
    assert [run.facts(rank)["received"] for rank in (0, 1)] == [7.0, 7.0]
    assert_calls(run, [0, 1], InitRankConfig=2, Split=1, Suspend=2, Resume=2, Abort=1, Destroy=2)


@lazily
def test_made_by_the_first_collective(tmp_path: Path, backend: str) -> None:
    """A communicator that comes late has the segments that were there before."""
    run = play(tmp_path, "made_by_first_use", backend)
    assert [run.facts(rank)["before"] for rank in (0, 1)] == [1, 1]
    assert_worked(run, "group", [0, 1], live=2)
    assert_calls(run, [0, 1], InitRankConfig=2, Destroy=2)


@lazily
def test_made_by_a_scope(tmp_path: Path, backend: str) -> None:
    """A scope makes the communicator of a group that waits for its first use."""
    run = play(tmp_path, "made_by_a_scope", backend)
    assert [run.facts(rank)["scope"] for rank in (0, 1)] == [[True, 3.0]] * 2
