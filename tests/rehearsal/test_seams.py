"""Correct programs are not hurt: late ranks, other settings, two launches, simulated groups.

Other stores, groups without some ranks and operators of the program: tests/harmless.
"""

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

from tracehook.audit.stacks import program_line
from tracehook.audit.summary import summarise
from tracehook.log.file_name import stacks_of

JOB = "seams.py"
NOBODY_ENDED = ("communicator.refused", "communicator.abort", "agreement.timeout", "agreement.mismatch")


def play(folder: Path, *arguments: str, ranks: int = 2, **env: str) -> Rehearsal:
    """Play a case; a rank that waits says so after a second."""
    return rehearse(JOB, *arguments, ranks=ranks, log=folder, env={"SYMM_REGISTER_TIMEOUT": "1"} | env, timeout=90)


def assert_unhurt(run: Rehearsal) -> None:
    """Assert that nothing was raised, refused or ended."""
    run.assert_good()
    assert [event for kind in NOBODY_ENDED for event in run.events(kind)] == [], run.output


def test_a_rank_that_is_late_to_a_barrier_is_waited_for(tmp_path: Path) -> None:
    """As without tracehook: a scope that was used before gives no later call another deadline."""
    run = play(tmp_path, "late_to_a_barrier", SYMM_REGISTER_TIMEOUT="3")
    assert_unhurt(run)
    for rank in (0, 1):
        assert (run.facts(rank)["first"], run.facts(rank)["then"], run.facts(rank)["again"]) == (3.0, 3.0, 3.0)
    assert run.finished.lines("did not come") == [], "a barrier is NCCL's own affair"
    assert list(tmp_path.glob("*.stacks")) == [], "nobody asked where the ranks are"


def test_a_rank_that_is_late_to_a_scope_is_named_once_and_waited_for(tmp_path: Path) -> None:
    """The rank that waits says which one is missing, and how long it will wait."""
    run = play(tmp_path, "late_to_a_scope")
    assert_unhurt(run)
    assert [run.facts(rank)["sum"] for rank in (0, 1)] == [3.0, 3.0]
    lines = run.finished.lines("rank 0 did not come to ")
    assert len(lines) == 2, run.output
    assert "'register windows' yet; rank 1 has waited for " in lines[0]
    assert "'placement of all_reduce' yet; rank 1 has waited for " in lines[1]
    assert all("for at most 60 s (the time-out of the group)" in line for line in lines)
    for log in run.logs:  # all ranks write where they are, those that wait and the one that is late
        line = program_line(stacks_of(log.path))
        assert line is not None, log.path
        assert line.file.endswith(JOB)


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("SYMM_REGISTER_GUARD", ("on", "off")),
        ("SYMM_REGISTER_SEGMENTS", ("from-1MiB", "no-graph-pools")),
    ],
)
def test_settings_that_differ_are_named_and_hurt_nobody(tmp_path: Path, variable: str, values: tuple[str, str]) -> None:
    """Each rank prints one sentence with the variable and the ranks; the sums are right."""
    env = {f"RANK{rank}_{variable}": value for rank, value in enumerate(values)} | {"SYMM_REGISTER_LOCAL": "auto"}
    run = rehearse(JOB, "settings", ranks=2, log=tmp_path, hook=False, env=env, timeout=90)
    assert_unhurt(run)
    for facts in run.told:
        assert (facts["sum"], facts["plain"], facts["symmetric"]) == (3.0, 3.0, True)
    lines = run.finished.lines(f"{variable} differs: ")
    assert len(lines) == 2, run.output
    assert all(" on rank 0; " in line and "on rank 1. Set it alike on all ranks" in line for line in lines)


@pytest.mark.parametrize(("case", "told"), [("versions", "tracehook 9.9.9 on rank 1"), ("formats", "format 99 on")])
def test_another_version_of_tracehook_is_one_sentence_on_all_ranks(tmp_path: Path, case: str, told: str) -> None:
    """Nobody waits, nobody has a traceback of ours."""
    run = play(tmp_path, case)
    for facts in run.told:
        assert "the ranks run different versions of tracehook" in facts["error"], run.output
        assert facts["seconds"] < 20
    assert told in run.facts(0)["error"]


def test_launches_with_one_common_group_meet_at_its_store(tmp_path: Path) -> None:
    """Their default groups are other ones, with other stores and ranks: a scope of the common group is right."""
    run = play(tmp_path, "two_launches", ranks=3, SYMM_REGISTER_TIMEOUT="20")
    assert_unhurt(run)
    assert run.facts(0)["sums"] == [3.0, 6.0] * 3
    assert run.facts(2)["sums"] == [6.0] * 3
    assert all(run.facts(rank)["symmetric"] for rank in range(3))
    assert run.finished.lines("did not come") == [], run.output


def test_communicators_after_a_simulated_group_are_registered(tmp_path: Path) -> None:
    """A simulation ends its group: a communicator made later, or in it, is found, and gets every segment."""
    run = rehearse(JOB, "simulated", ranks=2, log=tmp_path).assert_good()
    for rank in (0, 1):
        assert run.facts(rank)["held"][:2] == [1, 1]
        assert run.facts(rank)["made"]
        counts = summarise(run.log(rank))
        assert (counts.communicators, counts.local.left, counts.warnings) == (3, 0, 0)
