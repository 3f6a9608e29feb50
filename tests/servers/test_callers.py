"""nccl4py, CuPy and Megatron, with their own modules for NCCL unchanged. ``make integrations`` fetches them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import ROOT, Rehearsal, rehearse

FETCHED = ROOT / "build" / "servers"
HERE = Path(__file__).parent
NEW = "23007"
WINDOW = 4 << 20  # bytes
LARGE = 32 << 20  # bytes, of a segment of Megatron's

pytestmark = pytest.mark.skipif(not FETCHED.is_dir(), reason="the modules are not here: make integrations")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Megatron compiles its allocator: no g++")


def play(log: Path, job: str, *arguments: str) -> Rehearsal:
    """Play one case on two ranks."""
    env = {"FETCHED": str(FETCHED), "SYMM_REGISTER_TIMEOUT": "3", "TRACEHOOK_EMU_NCCL_VERSION": NEW}
    return rehearse(HERE / job, *arguments, log=log, ranks=2, env=env, timeout=300)


@pytest.mark.parametrize("who", ["nccl4py", "cupy"])
def test_its_communicator_and_its_windows_are_known(who: str, tmp_path: Path) -> None:
    """Its communicator is followed from birth to end, its windows are agreed on; the audit finds nothing."""
    run = play(tmp_path, "callers.py", who, "alike")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["known"] == [[rank, 2, rank]]
        assert (facts["sum"], facts["raised"], facts["left"]) == (3.0, "", []), run.output
        made = run.events("register.window", rank)
        assert [(event["ordinal"], event["size"], event["observed"]) for event in made] == [
            (0, WINDOW, True),
            (1, WINDOW, True),
        ]
        assert len(run.events("deregister.window", rank)) == 2
        assert len(run.events("agreement.reached", rank)) == 2
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


@pytest.mark.parametrize("who", ["nccl4py", "cupy"])
def test_windows_of_other_sizes_are_refused_on_every_rank(who: str, tmp_path: Path) -> None:
    """Both ranks raise, stderr names both sizes, and NCCL is not called."""
    run = play(tmp_path, "callers.py", who, "unequal")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["raised"], run.output
        assert not any(facts["calls"].values())
    wanted = f"rank 0 wants '{WINDOW} bytes, flags 1'; rank 1 wants '{2 * WINDOW} bytes, flags 1'"
    assert len(run.finished.lines(wanted)) == 2, run.output


@pytest.mark.parametrize("who", ["nccl4py", "cupy"])
def test_buffers_at_different_places_are_refused_on_every_rank(who: str, tmp_path: Path) -> None:
    """The windows were registered in opposite orders: the all-reduce is refused on both ranks, NCCL is not called."""
    run = play(tmp_path, "callers.py", who, "swapped")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["raised"], run.output
        assert (facts["calls"]["ncclCommWindowRegister"], facts["calls"]["ncclAllReduce"]) == (2, 0)
    lines = run.finished.lines("the ranks differ at 'placement of all_reduce'")
    assert len(lines) == 2, run.output
    assert all("in window 0" in line and "in window 1" in line for line in lines)
    text, _ = audit(tmp_path)
    assert "all_reduce on rank 1 in window 1 at byte 0 (memory of the program at 0x" in text


def test_a_configuration_of_nccl4py_works(tmp_path: Path) -> None:
    """Both ranks allow four blocks for this all-reduce."""
    run = play(tmp_path, "callers.py", "nccl4py", "configured")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["sum"], facts["raised"], facts["calls"]["ncclAllReduceConfig"]) == (3.0, "", 1), run.output


def test_configurations_of_nccl4py_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    """The field and both values are on stderr, and NCCL is not called."""
    run = play(tmp_path, "callers.py", "nccl4py", "misconfigured")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert facts["raised"], run.output
        assert facts["calls"]["ncclAllReduceConfig"] == 0
    assert len(run.finished.lines("rank 0 wants 'maxCTAs 4'; rank 1 wants 'maxCTAs 5'")) == 2, run.output


@needs_compiler
def test_megatrons_pools_are_known(tmp_path: Path) -> None:
    """All seven functions: each registration of a pool is a window in the log that both ranks agreed on, and ends."""
    run = play(tmp_path, "megatron_alone.py", "alike")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["sums"], facts["more"], facts["left"]) == ([3.0, 3.0], [3.0, 3.0, 3.0, 3.0], []), run.output
        assert facts["known"] == [[rank, 2, 5], [rank, 2, 5]]
        made = [event["ordinal"] for event in run.events("register.window", rank) if event["observed"]]
        # Of the world: two, the same two and a third, and the shared one. Of the other group: two.
        assert sorted(made) == [0, 0, 1, 1, 2, 3, 4, 5]
        assert len(run.events("deregister.window", rank)) == len(made)
        assert len(run.events("agreement.reached", rank)) == len(made)
    text, findings = audit(tmp_path)
    assert json.loads(findings) == [], text


@needs_compiler
def test_megatrons_pools_of_other_sizes_are_refused_on_every_rank(tmp_path: Path) -> None:
    """Both ranks name both sizes; Megatron says that it goes on without, on both, and its sum is right."""
    run = play(tmp_path, "megatron_alone.py", "unequal")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["registered"], facts["sums"]) == (0, [3.0, 3.0]), run.output
    wanted = f"rank 0 wants '{LARGE} bytes, flags 1'; rank 1 wants '{2 * LARGE} bytes, flags 1'"
    assert len(run.finished.lines(wanted)) == 2, run.output
    assert len(run.finished.lines("Failed to register mem pool")) == 2, run.output


@needs_compiler
def test_megatrons_tensors_in_other_places_are_refused_on_every_rank(tmp_path: Path) -> None:
    """A rank made its tensors in the opposite order: torch raises on both ranks, and NCCL is not called."""
    run = play(tmp_path, "megatron_alone.py", "swapped")
    run.assert_good()
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["registered"], facts["reduced"]) == (2, 0), run.output
        assert "rank 0 wants 'send buffer in window 0" in facts["raised"]
        assert "rank 1 wants 'send buffer in window 1" in facts["raised"]
