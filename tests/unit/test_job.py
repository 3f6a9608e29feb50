"""The id of a job: whose it is, who makes it, and who finds it in the environment."""

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


def test_the_first_process_makes_an_id_that_its_children_have():
    """Also those that get a rank: the id is in the environment. Two commands begin without one, and are two jobs."""
    environment: dict[str, str] = {}
    first = job.join(environment)
    assert first.id
    assert first.launcher is None
    assert job.join(dict(environment)) == job.join(environment | RANK) == first
    assert job.join({}) != job.join({})


@pytest.mark.parametrize("rank", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_a_rank_makes_no_id(rank):
    """What started it has started others too, and each would make another one."""
    environment = {rank: "3"}
    assert job.join(environment) == job.NONE
    assert environment == {rank: "3"}


MADE = object()  # the id that the launcher's own process made
SLURM, TORCHRUN, NAMELESS = {"SLURM_JOB_ID": "12"}, {"TORCHELASTIC_RUN_ID": "night"}, {"TORCHELASTIC_RUN_ID": "none"}
IDS = {
    "torchrun": (TORCHRUN, "night", MADE),
    "slurm": (SLURM, "12", None),
    "torchrun under slurm": (SLURM | TORCHRUN, "night", "12"),
    "torchrun without an id on one host": (NAMELESS, MADE, None),
    "torchrun without an id under slurm": (NAMELESS | SLURM, "12", None),
    # The torchrun of each host makes an id of its own, so "none" is all that they have in common.
    "torchrun without an id on several hosts": (NAMELESS | {"WORLD_SIZE": "8"}, "none", MADE),
}


@pytest.mark.parametrize("launcher", IDS)
def test_a_rank_has_the_id_that_people_look_for(launcher):
    """That of torchrun or of Slurm, if it has one; the launcher's own log has another one."""
    given, *wanted = IDS[launcher]
    environment: dict[str, str] = {}
    made = job.join(environment).id
    assert job.join(environment | RANK | given) == tuple(made if each is MADE else each for each in wanted)


def test_slurms_id_is_enough():
    """No other one is made."""
    environment = {"SLURM_JOB_ID": "12"}
    assert job.join(environment) == ("12", None)
    assert environment == {"SLURM_JOB_ID": "12"}


def test_an_id_that_a_person_chose():
    """It stands before all others, in every process, from a shell too."""
    environment = RANK | {"SYMM_REGISTER_JOB": "mine", "TORCHELASTIC_RUN_ID": "night", "SLURM_JOB_ID": "12"}
    assert job.join(environment) == ("mine", None)
    job.begin(environment)
    assert environment["SYMM_REGISTER_JOB"] == "mine"


def test_commands_from_a_notebook_are_jobs_of_their_own(shell):
    """Two commands of one notebook, and the notebook, have three ids."""
    notebook = shell["SYMM_REGISTER_JOB"].partition("/")[0]
    one, other = job.join(dict(shell)).id, job.join(dict(shell)).id
    assert len({notebook, one, other}) == 3


def test_a_process_that_a_notebook_forks_or_spawns_is_of_its_job(shell, monkeypatch):
    """It runs the same program; a forked child knows what its parent has joined."""
    with monkeypatch.context() as spawned:
        spawned.setattr(sys, "orig_argv", SPAWNED)
        assert job.join(shell).id == shell["SYMM_REGISTER_JOB"].partition("/")[0]
    monkeypatch.setattr(job, "_joined", "")
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    environment: dict[str, str] = {}
    assert job.join(environment) == job.join(environment)


def test_what_a_command_of_a_notebook_starts_is_of_that_commands_job(shell):
    """It makes an id for its children as a command from a shell does."""
    command = job.join(shell)
    assert job.join(shell | RANK) == job.join(shell) == command


def test_tracehook_run_begins_a_job():
    """Also where the environment has the id of another one; but not as the process of a rank."""
    environment: dict[str, str] = {}
    before = job.join(environment).id
    job.begin(environment)
    after = job.join(environment).id
    assert after != before
    ranks = environment | RANK
    job.begin(ranks)
    assert job.join(ranks).id == after
