"""Scopes beside what PyTorch does: trim beside other threads' scopes and captures, pools of the program, no memory."""

from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import alike, play
from support.torch_versions import FREES_BESIDE_POOLS

MB = 1 << 20
JOB = "symmetric_beside.py"
ERROR = None if FREES_BESIDE_POOLS else "OutOfMemoryError"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the cases that need no settings one after the other."""
    cases = ("trim_inside", "whose_pool", "whose_pool_in_a_capture", "open_scopes")
    return play(JOB, *cases, log=tmp_path_factory.mktemp("beside")).assert_good()


def _one(name: str, log: Path, **env: Any) -> Any:
    run = play(JOB, name, log=log, **env).assert_good()
    return alike(run, name)


def test_trim_inside_a_scope_is_refused(run: Rehearsal) -> None:
    """A thread that calls trim inside its own scope gets one line that says so; trim after the scope gives all back."""
    found = alike(run, "trim_inside")
    for kind, text in found["errors"]:
        assert (kind, text.count("\n")) == ("RuntimeError", 0)
        assert "tracehook.trim" in text
        assert "inside `with tracehook.symmetric" in text
    assert found["given_back"] == 32 * MB


@pytest.mark.parametrize(("beside", "policy"), [("scope", "shared"), ("capture", "isolated")])
def test_trim_beside_another_thread(tmp_path: Path, beside: str, policy: str) -> None:
    """Trim while another thread is in a scope, or captures, leaves both alone; what PyTorch keeps then comes later."""
    found = _one(f"trim_beside_{beside}", tmp_path, SYMM_REGISTER_POLICY=policy)
    at_once, later = found["bytes"]
    assert at_once == 0 or FREES_BESIDE_POOLS
    assert at_once + later >= 32 * MB
    assert found["sum"] == 3.0


def test_scope_wins_for_its_own_thread(run: Rehearsal) -> None:
    """A scope's tensors are symmetric whatever pool its thread had begun before, and whatever other threads do."""
    found = alike(run, "whose_pool")
    assert found["alone"][0] == [False, True]
    assert found["alone"][1][:3] == [True, False, True]
    assert found["beside"] == found["alone"]
    assert found["after"] == found["alone"]


def test_scope_wins_in_a_capture(run: Rehearsal) -> None:
    """A scope in a capture serves memory of its pool, also while another thread is in a scope of captured graphs."""
    assert alike(run, "whose_pool_in_a_capture") == {"reasons": ["deferred", "deferred"]}


def test_status_names_open_scopes(run: Rehearsal) -> None:
    """Status says which threads are in a scope, of which group, how deep and for how long."""
    assert alike(run, "open_scopes") == {
        "threads": ["MainThread", "stays"],
        "depths": [2, 1],
        "groups": [True, True],
        "open": [True, True],
        "after": [],
    }


def test_out_of_memory_in_a_scope_is_explained(tmp_path: Path) -> None:
    """An OutOfMemoryError of a scope says that PyTorch gave no cached memory back, where that does so only after it."""
    found = _one("out_of_memory", tmp_path, TRACEHOOK_EMU_MEMORY_GB="1")
    told = 0 if FREES_BESIDE_POOLS else 1
    assert found["named"].count("a scope was open") == told, "the outermost scope has the last word"
    assert found["named"].count("enter it again") == told
    assert found["after"] is True


def test_out_of_memory_beside_a_scope_is_explained(tmp_path: Path) -> None:
    """When a thread outside of all scopes has no memory left, one line names the scopes of others that keep it."""
    run = play(JOB, "out_of_memory_beside", log=tmp_path, TRACEHOOK_EMU_MEMORY_GB="1").assert_good()
    assert alike(run, "out_of_memory_beside") == {"errors": [ERROR] * 2, "after": True}
    told = [line for line in run.finished.err.splitlines() if "has no memory left" in line]
    assert len(told) == (2 if ERROR else 0), "one for each rank"
    assert all("stays, group 0, for " in line for line in told)


def test_empty_tries_again_when_there_is_no_memory(tmp_path: Path) -> None:
    """Where cached memory would serve, tracehook.empty has PyTorch give it back; else it raises what PyTorch raises."""
    found = _one("out_of_memory_in_empty", tmp_path, TRACEHOOK_EMU_MEMORY_GB="1")
    assert found == {"symmetric": True, "error": "OutOfMemoryError"}
