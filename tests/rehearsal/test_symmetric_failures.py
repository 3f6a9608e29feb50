"""Windows that NCCL refuses or never returns, groups without symmetric memory, and going on without windows."""

from pathlib import Path

import pytest
from support.symmetric import NEW, OLD, SHORT, alike, assert_broken, both, play

JOB = "symmetric_failures.py"
REFUSED = "ncclCommWindowRegister:fail@1=3"
HANG = 6  # seconds after which the emulation ends a hang in NCCL, where nothing else does


def test_window_that_never_comes_back_is_reported(tmp_path: Path) -> None:
    """NCCL refuses a window on rank 0, so rank 1 hangs in NCCL: it says so after SYMM_REGISTER_TIMEOUT; both raise."""
    run = play(
        JOB, "failing_alone", "leave", log=tmp_path, faults=f"{REFUSED}#rank0", TRACEHOOK_EMU_WINDOW_TIMEOUT=str(HANG)
    )
    assert_broken(run, "W1")  # the deadline of the emulation ends the hang
    for kind, _ in both(run, "error"):
        assert kind == "RegistrationTimeout"
    assert "On rank 0: NCCL error 3 at window 0 of 1" in run.facts(0)["error"][1], "the cause is named"
    stalls = run.events("register.stalled")
    assert [event["comm_rank"] for event in stalls] == [1], run.output
    assert SHORT - 0.1 <= stalls[0]["us"] / 1e6 < HANG
    assert stalls[0]["size"] == 32 << 20
    lines = run.finished.lines("has not come back after")
    assert len(lines) == 1, run.output
    assert stalls[0]["comm"] in lines[0]
    assert "this is its rank 1" in lines[0]
    assert len(list(tmp_path.glob("*.stacks"))) == 2, "all ranks write where they are"
    assert both(run, "windows") == [0, 0]
    assert both(run, "refused") == [["failed"]] * 2


def test_window_that_all_ranks_are_refused(tmp_path: Path) -> None:
    """NCCL refuses a window on all ranks: all raise RegistrationFailed with NCCL's error, and no more are tried."""
    run = play(JOB, "failing", "works", log=tmp_path, faults=REFUSED).assert_good()
    kind, text = alike(run, "error")
    assert kind == "RegistrationFailed"
    assert "on ranks 0, 1: NCCL error 3 at window 0 of 1" in text
    assert alike(run, "refused") == ["failed"]
    assert alike(run, "right")
    assert [(event["ok"], event["error"]) for event in run.events("register.window")] == [(False, 3)] * 2
    assert len(run.events("agreement.failed")) == 2


def test_no_window_is_used_after_one_was_refused(tmp_path: Path) -> None:
    """When the third window is refused, its scope and earlier ones go on without: NCCL is half registered."""
    run = play(JOB, "third_window", "works", log=tmp_path, faults="ncclCommWindowRegister:fail@3=3")
    assert both(run, "sums") == [[3.0] * 4] * 2
    assert alike(run, "reasons")[1:] == ["failed"] * 3
    assert len([event for event in run.events("register.window", 0) if event["ok"]]) == 2
    assert len(run.events("register.window", 0)) == 3, "the fourth is not tried"
    run.assert_good()


def test_a_call_of_another_thread_that_does_not_come_is_named(tmp_path: Path) -> None:
    """No rank makes a window while another rank lacks a call: all raise which rank, and the group works on."""
    # Half of the time-out is for the call that does not come.
    run = play(JOB, "behind", "works", log=tmp_path, SYMM_REGISTER_TIMEOUT="8").assert_good()
    kind, text = alike(run, "error")
    assert kind == "RegistrationFailed"
    assert "failed on rank 1: its threads made 1 of the 2 calls that another rank made within" in text
    assert "nothing was registered or called" in text
    assert (alike(run, "windows"), alike(run, "sum"), alike(run, "right")) == (0, 4.0, True)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_communicator_without_symmetric_memory(tmp_path: Path, version: str) -> None:
    """Null windows, and the handles of 2.28 that are none, are no windows: one line, scopes go on, sums are right."""
    run = play(JOB, "no_support", "works", log=tmp_path, version=version, TRACEHOOK_EMU_WINDOWS="null").assert_good()
    assert alike(run, "reasons") == ["no_symmetric_support"] * 2
    assert (alike(run, "windows"), alike(run, "symmetric"), alike(run, "synced")) == (0, False, 0)
    assert alike(run, "sums") == [3.0, 3.0]
    assert alike(run, "refused") == ["no_symmetric_support"] * 2
    assert len(run.finished.lines("this communicator has no symmetric memory")) == 2, "one a rank, of both groups"
    assert [event["effective"] for event in run.events("register.window")] == [False] * 4


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("warn_sizes", "mismatch", "the ranks differ at 'register windows'"),
        ("warn_missing", "timeout", f"rank 1 did not come within the {SHORT} s"),
    ],
)
def test_going_on_without_windows(tmp_path: Path, name: str, reason: str, said: str) -> None:
    """With SYMM_REGISTER_GUARD=watch each rank says one line, none has windows, and the sums are right."""
    run = play(JOB, name, "works", log=tmp_path, SYMM_REGISTER_GUARD="watch").assert_good()
    assert both(run, "error") == [None, None]
    assert (alike(run, "windows"), alike(run, "reason"), alike(run, "sum")) == (0, reason, 3.0)
    assert alike(run, "right")
    lines = run.finished.lines("SYMM_REGISTER_GUARD=watch")
    assert len(lines) == 2, run.output
    assert all(said in line for line in lines), lines
    made = run.events("register.window")
    assert len(made) == (2 if name == "warn_missing" else 0), "those of the next scope, which is as ever"


def test_refused_window_with_warn(tmp_path: Path) -> None:
    """With SYMM_REGISTER_GUARD=watch a window that NCCL refuses on all ranks is said, and the job goes on."""
    run = play(JOB, "failing", "works", log=tmp_path, faults=REFUSED, SYMM_REGISTER_GUARD="watch").assert_good()
    assert both(run, "error") == [None, None]
    assert alike(run, "right")
    assert len(run.finished.lines("NCCL error 3 at window 0 of 1")) == 2
