"""The id of a job: whose it is, who makes it, and who finds it in the environment."""

from __future__ import annotations

import sys

import pytest

from tracehook.hook import job

RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
SPAWNED = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)"]


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types into this process, and it has joined no job yet."""
    monkeypatch.setattr(job, "_joined", "")
    monkeypatch.delattr(sys, "ps1", raising=False)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of what was started from a notebook that has joined a job."""
    environment: dict[str, str] = {}
    with monkeypatch.context() as inside:
        inside.setattr(sys, "ps1", ">>> ", raising=False)
        job.join(environment)
    monkeypatch.setattr(job, "_joined", "")
    return environment


def test_the_first_process_makes_an_id_that_its_children_have() -> None:
    """Also those that get a rank: the id is in the environment."""
    environment: dict[str, str] = {}
    first = job.join(environment)
    assert first.id
    assert first.launcher is None
    assert job.join(dict(environment)) == job.join(environment | RANK) == first


def test_two_commands_are_two_jobs() -> None:
    """Each begins with the same environment, which has no id."""
    assert job.join({}) != job.join({})


@pytest.mark.parametrize("rank", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_a_rank_makes_no_id(rank: str) -> None:
    """What started it has started others too, and each would make another one."""
    environment = {rank: "3"}
    assert job.join(environment) == job.NONE
    assert environment == {rank: "3"}


def test_torchrun_and_slurm_come_first() -> None:
    """Their ids are those that people look for; the launcher's own log has another one."""
    environment: dict[str, str] = {}
    made = job.join(environment).id
    ranks = environment | RANK
    assert job.join(ranks | {"TORCHELASTIC_RUN_ID": "night"}) == ("night", made)
    assert job.join(ranks | {"SLURM_JOB_ID": "12"}) == ("12", None)
    assert job.join(ranks | {"SLURM_JOB_ID": "12", "TORCHELASTIC_RUN_ID": "night"}) == ("night", "12")


def test_slurms_id_is_enough() -> None:
    """No other one is made."""
    environment = {"SLURM_JOB_ID": "12"}
    assert job.join(environment) == ("12", None)
    assert environment == {"SLURM_JOB_ID": "12"}


def test_torchrun_without_an_id_on_one_host() -> None:
    """It calls all its jobs "none"; its own process has an id of each."""
    environment: dict[str, str] = {}
    made = job.join(environment).id
    none = RANK | {"TORCHELASTIC_RUN_ID": "none"}
    assert job.join(environment | none) == (made, None)
    assert job.join(environment | none | {"SLURM_JOB_ID": "12"}) == ("12", None)


def test_torchrun_without_an_id_on_several_hosts() -> None:
    """The torchrun of each host makes an id of its own, so "none" is all that they have in common."""
    environment: dict[str, str] = {}
    made = job.join(environment).id
    ranks = environment | RANK | {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"}
    assert job.join(ranks) == ("none", made)


def test_an_id_that_a_person_chose() -> None:
    """It stands before all others, in every process, from a shell too."""
    environment = RANK | {"SYMM_REGISTER_JOB": "mine", "TORCHELASTIC_RUN_ID": "night", "SLURM_JOB_ID": "12"}
    assert job.join(environment) == ("mine", None)
    job.begin(environment)
    assert environment["SYMM_REGISTER_JOB"] == "mine"


def test_commands_from_a_notebook_are_jobs_of_their_own(shell: dict[str, str]) -> None:
    """Two commands of one notebook, and the notebook, have three ids."""
    notebook = shell["SYMM_REGISTER_JOB"].partition("/")[0]
    one, other = job.join(dict(shell)).id, job.join(dict(shell)).id
    assert len({notebook, one, other}) == 3


def test_processes_that_a_notebook_spawns_are_of_its_job(
    shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run the same program."""
    monkeypatch.setattr(sys, "orig_argv", SPAWNED)
    assert job.join(shell).id == shell["SYMM_REGISTER_JOB"].partition("/")[0]


def test_a_fork_of_a_notebook_is_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child knows what its parent has joined."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    environment: dict[str, str] = {}
    assert job.join(environment) == job.join(environment)


def test_what_a_command_of_a_notebook_starts_is_of_that_commands_job(shell: dict[str, str]) -> None:
    """It makes an id for its children as a command from a shell does."""
    command = job.join(shell)
    assert job.join(shell | RANK) == job.join(shell) == command


def test_tracehook_run_begins_a_job() -> None:
    """Also where the environment has the id of another one; but not as the process of a rank."""
    environment: dict[str, str] = {}
    before = job.join(environment).id
    job.begin(environment)
    after = job.join(environment).id
    assert after != before
    ranks = environment | RANK
    job.begin(ranks)
    assert job.join(ranks).id == after
