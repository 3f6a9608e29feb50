"""Random schedules on emulated ranks: no hang, no wrong sum that was not announced, nothing left behind.

RANDOM_SCHEDULES is the number of seeds of each run (50 at least), RANDOM_SCHEDULES_FROM the first one. A failing seed
can be played alone, with the variables of `play` below: ``random_schedule.py SEED 1``.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import RULES_BROKEN, Rehearsal, rehearse

SEEDS = int(os.environ.get("RANDOM_SCHEDULES", "30"))
FIRST = int(os.environ.get("RANDOM_SCHEDULES_FROM", "0"))
LONGEST = 120 + 2 * SEEDS  # seconds
STREAMS = 32  # that torch's pool has: each group takes the next one, and the emulation gives it a thread
OLD, NEW = "22809", "23007"


def variables(guard: str = "on", policy: str = "shared", version: str = OLD) -> dict[str, str]:
    """Return what the job of random schedules wants of the environment."""
    return {
        "SYMM_REGISTER_GUARD": guard,
        "SYMM_REGISTER_POLICY": policy,
        "TRACEHOOK_EMU_NCCL_VERSION": version,
        # torch asks for the name of its own address at each connection to its store: by TCP, because a datagram of
        # the resolver's that is lost costs five seconds.
        "RES_OPTIONS": "use-vc attempts:1 timeout:1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # as torch asks of those who abort groups themselves
        # After an error torch waits four times as long for its dump, and so does the destructor of the group. The
        # default is 15 s.
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a warning at each wait that ends by its time
    }


def play(
    ranks: int,
    *arguments: str,
    seeds: int = SEEDS,
    first: int = FIRST,
    version: str = OLD,
    guard: str = "on",
    policy: str = "shared",
    log: Path | None = None,
) -> Rehearsal:
    """Play seeds one after the other on groups of their own."""
    env = variables(guard, policy, version)
    if log is None:
        env["SYMM_REGISTER_HOOK"] = "1"
    return rehearse(
        "random_schedule.py", str(first), str(seeds), *arguments, ranks=ranks, log=log, env=env, timeout=LONGEST
    )


def failures(run: Rehearsal, ranks: int) -> dict[str, list[str]]:
    """Return the seeds that went wrong on some rank, and how."""
    told = [run.facts(rank) for rank in range(ranks)]
    assert all("failed" in facts for facts in told), run.output
    return {seed: why for facts in told for seed, why in facts["failures"].items()}


def assert_nothing_grew(before: dict[str, int], after: dict[str, int]) -> None:
    """Assert that a process holds at the end what it held at its beginning."""
    assert after["files"] <= before["files"] + 2, (before, after)
    assert after["threads"] <= before["threads"] + STREAMS, (before, after)
    assert after["resident_mb"] <= before["resident_mb"] + 50 + SEEDS // 20, (before, after)  # MiB


def assert_windows_are_undone(run: Rehearsal) -> None:
    """Assert that each communicator that was not aborted has undone each of its windows, once."""
    assert not any(log.dropped for log in run.logs)
    for log in run.logs:
        balance: Counter[Any] = Counter()
        aborted = {event["comm_id"] for event in log.events if event["event"] == "communicator.abort"}
        for event in log.events:
            if event["event"] in ("register.window", "deregister.window"):
                assert event["ok"], event
                balance[event["comm_id"], event["addr"]] += 1 if event["event"] == "register.window" else -1
                assert balance[event["comm_id"], event["addr"]] in (0, 1), event
        left = {key: count for key, count in balance.items() if count and key[0] not in aborted}
        assert balance
        assert left == {}, left


@pytest.mark.timeout(LONGEST + 30)
@pytest.mark.parametrize(
    ("ranks", "version", "policy", "arguments"),
    [(3, OLD, "isolated", ("some", "stubborn", "hangs")), (4, NEW, "shared", ())],
    ids=["three stubborn", "four"],
)
def test_a_departing_rank_is_announced(
    tmp_path: Path, ranks: int, version: str, policy: str, arguments: tuple[str, ...]
) -> None:
    """Without one all is right. A wrong sum is announced by the next ``sync``; no stubborn rank goes on alone."""
    run = play(ranks, *arguments, version=version, policy=policy, log=tmp_path)
    assert failures(run, ranks) == {}, run.output
    # What all ranks have used before may be swapped in silence; the rule tells it, and the digest tells it.
    found = any("wrong" in how for how in run.facts()["ended"])
    assert run.broken in ([], ["W16"]), run.output
    assert run.status == (RULES_BROKEN if run.broken else 0), run.output
    assert bool(run.broken) or not found, run.output
    assert run.finished.orphans == 0
    for facts in run.told:
        assert sum(facts["ended"].values()) == SEEDS
        assert facts["ended"]["uniform: right"] > SEEDS / 2
        assert_nothing_grew(facts["before"], facts["after"])
    announced = " ".join(run.facts()["ended"])
    assert all(name in announced for name in ("DistBackendError", "RegistrationMismatch"))
    assert_windows_are_undone(run)


@pytest.mark.timeout(LONGEST + 30)
@pytest.mark.parametrize(("ranks", "version"), [(2, OLD), (4, NEW)])
def test_nothing_hangs_where_only_the_first_use_is_compared(tmp_path: Path, ranks: int, version: str) -> None:
    """Whatever one rank does otherwise, with other threads at work: nobody waits for ever, no wrong sum goes untold."""
    run = play(ranks, "some", "hangs", "threads", version=version, log=tmp_path)
    assert failures(run, ranks) == {}, run.output
    assert run.broken in ([], ["W16"]), run.output
    assert run.finished.orphans == 0
    for facts in run.told:
        assert sum(facts["ended"].values()) == SEEDS
        assert facts["ended"]["uniform: right"] > SEEDS / 2
    assert_windows_are_undone(run)


@pytest.mark.parametrize(("ranks", "first"), [(3, 254), (2, 810)])
def test_a_collective_of_another_thread_does_not_look_like_a_skipped_scope(ranks: int, first: int) -> None:
    """The end of a scope of two groups is one point of the program, whether or not another thread called meanwhile."""
    run = play(ranks, "some", "hangs", "threads", first=first, seeds=20, version=NEW)
    assert failures(run, ranks) == {}, run.output
    assert run.broken in ([], ["W16"]), run.output


@pytest.mark.parametrize(("ranks", "version", "seed"), [(4, NEW, 615), (4, NEW, 657), (2, OLD, 1616), (2, NEW, 1969)])
def test_a_window_and_a_call_of_another_thread_come_in_one_order(ranks: int, version: str, seed: int) -> None:
    """No rank makes a window before a call that another rank makes after it; nor while the ranks compare that call."""
    run = play(ranks, "some", "hangs", "threads", first=seed, seeds=1, version=version)
    assert failures(run, ranks) == {}, run.output


def test_what_all_ranks_know_may_hang_in_nccl_and_is_ended() -> None:
    """A rank takes a window where the others take ordinary memory, all known: the group, which hangs, is aborted."""
    run = play(3, "some", "hangs", "threads", first=2585, seeds=1, version=NEW)
    assert failures(run, 3) == {}, run.output
    assert run.broken == ["W16"], run.output
    assert "some ranks are in a symmetric kernel of NCCL and the others are not" in run.finished.err


def test_the_digest_finds_what_was_not_compared() -> None:
    """A rank that takes another tensor, at places that were compared before, makes sums wrong, and ``sync`` says so."""
    run = play(2, "known tensor", seeds=60)
    assert failures(run, 2) == {}, run.output
    assert any("wrong, then RegistrationMismatch" in how for how in run.facts()["ended"]), run.output
    assert run.broken == ["W16"], run.output


def test_the_judgement_finds_what_is_not_compared() -> None:
    """Without any comparison, a rank that swaps two tensors makes sums wrong, and the judgement tells it."""
    run = play(2, "swap", seeds=20, guard="off")
    found = [why for seed in failures(run, 2).values() for why in seed]
    assert any("wrong at step" in why and "not announced" in why for why in found), run.output
    assert run.broken == ["W16"], run.output
