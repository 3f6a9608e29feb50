"""The end of the interpreter: the log is closed, and we make no call into CUDA or NCCL."""

from pathlib import Path

import pytest
from support.rehearsal import rehearse


def test_no_call_at_exit(tmp_path: Path) -> None:
    """Between the handlers around ours, not one call is made, though a communicator lives and holds segments."""
    run = rehearse("at_exit.py", "by hand", log=tmp_path, cold=True)
    run.assert_good()
    assert run.facts()["held"] == [1]
    assert set(run.facts()["made"].values()) == {0}, run.output
    assert run.log().ended
    assert run.log().events[-1]["communicators"] == 1


def test_no_registration_at_exit(tmp_path: Path) -> None:
    """With a live group of torch's, whose watchdog goes on asking, nothing is registered or deregistered at exit."""
    run = rehearse("at_exit.py", "group", log=tmp_path, cold=True)
    run.assert_good()
    made = run.facts()["made"]
    assert (made["ncclCommRegister"], made["ncclCommDeregister"]) == (0, 0)
    assert run.log().ended


@pytest.mark.parametrize("log", [True, False])
def test_thread_of_the_log_has_ended(tmp_path: Path, log: bool) -> None:
    """Once the log is closed its thread is gone, with and without a directory."""
    if log:
        run = rehearse("at_exit.py", "by hand", log=tmp_path, cold=True)
    else:
        run = rehearse("at_exit.py", "by hand", env={"SYMM_REGISTER_HOOK": "1"}, cold=True)
    run.assert_good()
    assert run.facts()["log_threads"] == []
