"""The end of the interpreter: the log is closed, and we make no call into CUDA or NCCL."""

from pathlib import Path

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
