"""Ranks as threads of one process: a free of one does not wait for a call in which another waits for it."""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse

AUTO, ALL = ({"SYMM_REGISTER_LOCAL": value} for value in ("auto", "all"))
VMM = ALL | {"SYMM_REGISTER_MEMORY": "vmm"}
KEEPERS = pytest.mark.parametrize("env", [ALL, VMM], ids=["all", "vmm"])
LONG = 6  # seconds that a slow call takes here
SCARCE = {"TRACEHOOK_EMU_MEMORY_GB": "1", "SPARE_MB": "640"}


def assert_through(run: Rehearsal) -> None:
    """Assert that both ranks came to their end, and the memory went before."""
    run.assert_good()
    assert (run.facts()["done"], run.facts()["freed"]) == ([True, True], [[0, 0]]), run.output
    assert run.events("deregister.stalled") == []


def assert_all_back(run: Rehearsal, log: Path) -> None:
    """Assert that nothing is left registered, the driver has all memory, and the audit finds no fault."""
    assert run.facts()["kept"] == [0, 0], run.output
    assert len(run.events("deregister.local")) == len(run.events("register.local"))
    assert {event["segment"] for event in run.events("segment.buried")} <= {
        event["segment"] for event in run.events("segment.free")
    }
    Audit(log).expect(CLEAN)


@pytest.mark.parametrize("env", [AUTO, ALL, VMM], ids=["auto", "all", "vmm"])
def test_a_free_beside_a_split_of_another_rank(tmp_path: Path, env: dict[str, str]) -> None:
    """The segment that the busy communicator holds is buried, and goes when the split is over."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", devices=2, log=tmp_path, env=env)
    assert_through(run)
    assert_all_back(run, tmp_path)
    assert len(run.events("register.local")) == (0 if env is AUTO else 2)
    assert len(run.events("segment.buried")) == (0 if env is AUTO else 1)


@pytest.mark.parametrize(
    ("call", "env"), [("ncclCommWindowRegister", ALL), ("ncclCommInitRank", ALL), ("ncclGroupEnd", VMM)]
)
def test_a_free_beside_a_call_that_waits_for_its_thread(tmp_path: Path, env: dict[str, str], call: str) -> None:
    """Whatever another thread waits for inside NCCL, a free does not wait for it."""
    run = rehearse("threads_of_ranks.py", call, devices=2, log=tmp_path, env=env)
    assert_through(run)
    assert_all_back(run, tmp_path)
    assert len(run.events("segment.buried")) == (0 if call == "ncclCommInitRank" else 1)


def test_a_free_beside_a_long_collective(tmp_path: Path) -> None:
    """A first collective connects the ranks, which takes as long as the other ones do."""
    slow = f"ncclAllReduce:slow@1={LONG}s"
    run = rehearse("threads_of_ranks.py", "ncclAllReduce", devices=2, log=tmp_path, env=VMM, faults=slow)
    assert_through(run)
    assert_all_back(run, tmp_path)
    assert run.facts()["took"][0] < LONG / 2


@KEEPERS
def test_memory_of_the_grave_serves_who_has_none(tmp_path: Path, env: dict[str, str]) -> None:
    """A device without room gets back what was buried, once it is deregistered."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", "late", devices=2, log=tmp_path, env=env | SCARCE)
    assert_through(run)
    assert run.facts()["asked"] == [True]
    assert_all_back(run, tmp_path)


def test_memory_that_is_registered_serves_nobody(tmp_path: Path) -> None:
    """While NCCL has it, the memory cannot be had back: torch says that there is none, and the job goes on."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", "early", devices=2, log=tmp_path, env=VMM | SCARCE)
    assert_through(run)
    assert run.facts()["asked"] == [False]
    assert_all_back(run, tmp_path)


@KEEPERS
def test_an_abort_empties_the_grave(tmp_path: Path, env: dict[str, str]) -> None:
    """After an abort NCCL has no registrations, so the memory goes."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", "abort", devices=2, log=tmp_path, env=env | SCARCE)
    assert_through(run)
    assert len(run.events("segment.buried")) == 1
    assert len(run.events("segment.free")) == 2
    Audit(tmp_path).expect(CLEAN)


def test_a_process_ends_beside_its_grave(tmp_path: Path) -> None:
    """What is buried at the end goes with the process."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", "exit", devices=2, log=tmp_path, env=VMM)
    assert_through(run)
    assert len(run.events("segment.buried")) == 1


@pytest.mark.parametrize("env", [AUTO, ALL | {"SYMM_REGISTER_SEGMENTS": "from-1GiB"}], ids=["auto", "small"])
def test_a_free_of_what_is_not_registered_waits_for_no_call(tmp_path: Path, env: dict[str, str]) -> None:
    """A window registration waits for all ranks inside the gate; a segment without a registration goes meanwhile."""
    run = rehearse("threads_of_ranks.py", "ncclCommWindowRegister", devices=2, log=tmp_path, env=env)
    assert_through(run)
    assert run.events("segment.buried") == []
