"""Groups by the names that people know, and ranks by their number in the job: in the log and in exceptions."""

from pathlib import Path

import pytest
from support.packages import install
from support.rehearsal import Rehearsal, rehearse

JOB = "named_groups.py"
POLICY = """
from tracehook.policies import Answer

def large_only(request):
    print(f"asked {request.groups} {request.descriptions} {request.members} {request.operation} {request.nbytes}")
    if request.nbytes is not None and request.nbytes < 1 << 20:
        return Answer.NONE
    return None
"""


def play(log: Path, *arguments: str, **env: str) -> Rehearsal:
    """Run the job on four ranks."""
    return rehearse(JOB, *arguments, ranks=4, log=log, env={"SYMM_REGISTER_TIMEOUT": "30"} | env)


def named(run: Rehearsal, rank: int) -> dict[str | None, list[int]]:
    """Return the groups in the log of a rank, with their global ranks."""
    return {event["desc"]: event["members"] for event in run.events("communicator.group", rank)}


def errors(run: Rehearsal, ranks: tuple[int, ...]) -> tuple[str, str]:
    """Return class and text of the error that these ranks tell alike."""
    told = {tuple(run.facts(rank)["error"]) for rank in ranks}
    assert len(told) == 1, run.output
    kind, text = told.pop()
    return kind, text


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """The job whose second pair differs in a scope."""
    return play(tmp_path_factory.mktemp("sizes"), "sizes").assert_good()


def test_the_log_names_groups(sizes: Rehearsal) -> None:
    """Each communicator of a group has one line, with the ranks of the job."""
    run = sizes
    for rank in range(4):
        pair = rank // 2
        assert named(run, rank) == {None: [0, 1, 2, 3], f"tp_{pair}": [2 * pair, 2 * pair + 1]}, run.output
        lines = run.events("communicator.group", rank)
        ready = {event["comm_id"]: event["comm"] for event in run.events("communicator.ready", rank)}
        assert {line["comm_id"]: line["comm"] for line in lines} == ready


def test_ranks_that_differ_are_named_by_the_job(sizes: Rehearsal) -> None:
    """With their rank in the group beside it, alike on all ranks that raise."""
    kind, text = errors(sizes, (2, 3))
    assert kind == "RegistrationMismatch"
    assert "(group tp_1, ranks 2, 3): the ranks differ" in text
    assert (
        "rank 2 (0 of tp_1) wants 'a segment of 33554432 bytes'; rank 3 (1 of tp_1) wants 'a segment of 67108864 bytes'"
        in text
    )


def test_a_group_of_a_mesh_is_called_by_its_dimension_unless_it_may_be_another(tmp_path: Path) -> None:
    """Groups without a call so far are told apart by this process's rank in them: ranks 0 and 3 have one in both."""
    run = play(tmp_path, "mesh").assert_good()
    assert [{"tp", "dp"} & set(named(run, rank)) for rank in range(4)] == [set(), {"tp", "dp"}, {"tp", "dp"}, set()]
    assert (named(run, 1)["tp"], named(run, 1)["dp"]) == ([0, 1], [1, 3])


def test_a_policy_knows_groups_by_name_and_ranks_and_explain_names_the_one_that_refused(tmp_path: Path) -> None:
    """It can tell the group of tensors from that of experts.

    Once memory was given to another scope of the group, it may also have been made elsewhere.
    """
    install(tmp_path / "site", "large_only", "1.0", {"large_only": POLICY}, {"large-only": "large_only:large_only"})
    refused = play(tmp_path / "log", "refused", str(tmp_path / "site"), SYMM_REGISTER_POLICY="large-only").assert_good()
    assert "('tp_1',) ((2, 3),) all_reduce 4096" in refused.output
    facts = refused.facts(3)
    assert facts["one"][1] == "policy"
    assert "policy 'large-only' answered NONE for all scopes of" in facts["one"][2]
    assert facts["two"][1] == "not_in_pool"
    assert "policy 'large-only' answered NONE for some scopes of" in facts["two"][2]
    assert facts["large"][1] == "symmetric"
