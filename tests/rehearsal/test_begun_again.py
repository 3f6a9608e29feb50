"""Groups that are made anew, in one process or by a restart of all: what stays in the store of the former ones."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse

HOOK = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_TIMEOUT": "60"}
GROUPS = 2  # of jobs/left_keys.py
# Of each group, whatever its ranks: somebody may still come for the last verdicts.
STAYS = sorted(["*/placement/1/1/verdict", "*/windows/1/2/verdict"] * GROUPS)


def test_the_store_of_a_group_ends_with_it() -> None:
    """Else the next group at that port finds what the former one wrote, such as NCCL's unique id, and hangs."""
    run = rehearse("begun_again.py", "same", ranks=2, env=HOOK, timeout=150).assert_good()
    assert run.facts(0)["still_there"] is False
    for rank in range(2):
        assert run.facts(rank)["sum"] == run.facts(rank)["again"] == 3.0, run.output
        assert run.facts(rank)["watches"] == 1, run.output
    assert "deleteKey" not in run.finished.err, run.output  # where torch warns of a store that is gone


def test_a_process_hears_alarms_at_the_store_of_its_newest_group() -> None:
    """A rank without a scope answers in its second life, too: the other one does not wait until its time is up."""
    run = rehearse("begun_again.py", "elsewhere", ranks=2, env=HOOK, timeout=150)
    assert run.facts(0)["still_there"] is False
    assert run.facts(0)["error"].startswith("RegistrationMismatch: "), run.output


@pytest.mark.parametrize(("case", "hook"), [("first", True), ("adopted", False)])
def test_an_attempt_reads_nothing_of_the_one_before(case: str, hook: bool, tmp_path: Path) -> None:
    """What ranks of a failed attempt left in the store of torchrun's agent belongs to it alone."""
    env = {"PET_MAX_RESTARTS": "1", "SYMM_REGISTER_TIMEOUT": "20"}
    run = rehearse("attempts.py", case, ranks=2, torchrun=True, log=tmp_path / "logs", hook=hook, env=env, timeout=180)
    assert run.status == 0, run.output
    for rank in range(2):
        assert run.facts(rank)["sum"] == run.facts(rank)["again"] == 3.0, run.output


def test_a_group_leaves_two_keys() -> None:
    """A second after a group has ended, its rounds, its counters and its samples are gone from the store."""
    run = rehearse("left_keys.py", "2", ranks=3, env={"SYMM_REGISTER_HOOK": "1"}, timeout=120).assert_good()
    for facts in run.told:
        assert facts["left"] == STAYS, run.output
