"""Who registers: tracehook, or torch by itself, which is then recorded with its segments instead of done twice."""

from collections import Counter
from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse
from support.torch_versions import BY_ITSELF, LEGACY, needs_nccl2

NCCL2 = "TORCH_DIST_USE_NCCL2"  # 1: backend "nccl" is the group that registers by itself, if torch has it


def play(log: Path, backend: str, when: str = "first", **env: str) -> Rehearsal:
    """Run the job with two ranks; it ends well, and its sums are right."""
    run = rehearse(
        "observed.py", backend, when, ranks=2, log=log, hook=when == "first", env={NCCL2: str(int(BY_ITSELF)), **env}
    )
    assert (run.status, run.broken) == (0, []), run.output
    for facts in run.told:
        assert (facts["sum"], facts["end"]) == (4.0, "reached"), run.output
    return run


def registered(run: Rehearsal, rank: int) -> Counter[tuple[int, int]]:
    """Return how often each segment was registered with each communicator."""
    return Counter((event["segment"], event["comm_id"]) for event in run.events("register.local", rank))


@needs_nccl2
def test_torch_that_registers_by_itself_is_recorded(tmp_path: Path) -> None:
    """Each segment is registered once with each communicator of its time, by torch, and the log has all of it."""
    run = play(tmp_path, "nccl", **{NCCL2: "1"})
    for rank, facts in enumerate(run.told):
        assert facts["kinds"] == ["observed"] * 2
        counts = registered(run, rank)
        assert set(counts.values()) == {1}
        assert len(counts) == facts["made"] == facts["undone"], "what NCCL saw is what the log has"
        assert facts["symmetric"] is True
        assert facts["reduced"] == 1.0
        assert all(event["observed"] for event in run.events("register.local", rank))
        assert {event["local"] for event in run.events("communicator.pending", rank)} == {"observed"}
    Audit.expect_only_in_vain(tmp_path)


@needs_nccl2
def test_enabled_late(tmp_path: Path) -> None:
    """What torch registered before is in no log; what it does from then on is, and nothing is said to be missing."""
    run = play(tmp_path, "nccl", "late")
    for rank, facts in enumerate(run.told):
        assert facts["kinds"] == ["observed"] * 2
        assert sum(registered(run, rank).values()) == facts["made"] - facts["before"]
    assert [event.get("adopted", False) for event in run.events("communicator.pending", 0)] == [True, False]
    Audit.expect_only_in_vain(tmp_path)


@needs_nccl2
def test_both(tmp_path: Path) -> None:
    """`own` registers beside torch, which counts; that is as good, and costs twice the calls."""
    run = play(tmp_path, "nccl", SYMM_REGISTER_LOCAL="own")
    for rank, facts in enumerate(run.told):
        assert facts["kinds"] == ["own"] * 2
        assert facts["made"] == facts["undone"] > sum(registered(run, rank).values())
    Audit(tmp_path).expect(CLEAN, "Clean: ")


@needs_nccl2
@pytest.mark.parametrize(("mode", "kind"), [("observe", "observed"), ("off", "off")])
def test_torch_alone(tmp_path: Path, mode: str, kind: str) -> None:
    """Whatever tracehook is told, torch registers: `observe` has it all in the log, `off` nothing."""
    run = play(tmp_path, "nccl", SYMM_REGISTER_LOCAL=mode)
    for rank, facts in enumerate(run.told):
        assert facts["kinds"] == [kind] * 2
        assert facts["symmetric"] is True
        assert facts["made"] == facts["undone"] > 0
        assert sum(registered(run, rank).values()) == (facts["made"] if mode == "observe" else 0)
    if mode == "observe":
        Audit.expect_only_in_vain(tmp_path)
    else:
        Audit(tmp_path).expect(CLEAN, "Clean: ")


@pytest.mark.parametrize(("mode", "kind"), [("off", "off"), ("observe", "observed")])
def test_nobody(tmp_path: Path, mode: str, kind: str) -> None:
    """`off` registers nothing and misses nothing, nor does `observe` with a group that registers nothing.

    Windows of scopes are made all the same.
    """
    run = play(tmp_path, LEGACY, SYMM_REGISTER_LOCAL=mode)
    for facts in run.told:
        assert (facts["kinds"], facts["made"], facts["symmetric"]) == ([kind] * 2, 0, True)
    Audit(tmp_path).expect(CLEAN, "Clean: ")
