"""The end of the interpreter: the log is closed, and we make no call into CUDA or NCCL."""

from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.rehearsal import rehearse


def test_no_call_at_exit(tmp_path: Path) -> None:
    """Between the handlers around ours, not one call is made, though a communicator lives and holds segments."""
    run = rehearse("at_exit.py", "by hand", log=tmp_path, cold=True)
    run.assert_good()
    assert run.facts()["held"] == [1]
    assert set(run.facts()["made"].values()) == {0}, run.output
    assert run.log().ended
    assert run.log().events[-1]["communicators"] == 1
    assert run.facts()["log_threads"] == []


def test_no_registration_at_exit(tmp_path: Path) -> None:
    """With a live group of torch's, whose watchdog goes on asking, nothing is registered or deregistered at exit."""
    run = rehearse("at_exit.py", "group", log=tmp_path, cold=True)
    run.assert_good()
    made = run.facts()["made"]
    assert (made["ncclCommRegister"], made["ncclCommDeregister"]) == (0, 0)
    assert run.log().ended


def test_thread_of_the_log_has_ended_without_a_log() -> None:
    """It is there without a directory, too, and gone before the interpreter ends."""
    run = rehearse("at_exit.py", "by hand", env={"SYMM_REGISTER_HOOK": "1"}, cold=True).assert_good()
    assert run.facts()["log_threads"] == []


@pytest.mark.parametrize("status", [0, 3])
def test_exit_of_c_is_no_kill(tmp_path: Path, status: int) -> None:
    """A program that embeds Python may end so: no exit handler of Python's runs, and the log has the status."""
    script, logs = tmp_path / "embedded.py", tmp_path / "logs"
    script.write_text(f"import ctypes, torch\ntorch.ones(4, device='cuda')\nctypes.CDLL(None).exit({status})\n")
    run = rehearse(script, log=logs, cold=True)
    assert run.status == status, run.output
    assert not run.log().ended
    assert [(event["event"], event["status"]) for event in run.log().events[-1:]] == [("python.exit", status)]
    done = Audit(logs).expect(FINDINGS if status else CLEAN)
    assert "no-end" not in done.out
