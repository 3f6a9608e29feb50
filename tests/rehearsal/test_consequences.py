"""Rules that are broken because something else failed first are told apart, and do not decide the exit status."""

import sys
from pathlib import Path

import pytest
from support.rehearsal import RULES_BROKEN, run_command, write_job

from rehearsal.test_own_log import audit, rehearse
from tracehook.rehearsal.consequences import Failure, mark

# Rank 1 ends a communicator that has a registration: before it raises, or after that, as it ends.
RAISES = """
import atexit, ctypes, sys
import torch, torch.distributed as dist
from common import RANK, made_by_hand, must, start
device = start()
dist.all_reduce(torch.ones(4, device=device))
torch.cuda.synchronize()
if RANK == 1:
    memory = torch.empty(1 << 21, dtype=torch.uint8, device="cuda")
    nccl, communicator = made_by_hand()
    pointer, size, handle = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(1 << 21), ctypes.c_void_p()
    must(nccl.ncclCommRegister(communicator, pointer, size, ctypes.byref(handle)))
    if sys.argv[1] == "before":
        nccl.ncclCommDestroy(communicator)
    else:
        atexit.register(nccl.ncclCommDestroy, communicator)
    raise RuntimeError("in the middle")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("when", "status", "own"), [("after", 1, 0), ("before", RULES_BROKEN, 1)])
def test_what_a_rank_breaks_after_it_raised_is_a_consequence(tmp_path: Path, when: str, status: int, own: int) -> None:
    """What it broke before is not."""
    job = write_job(tmp_path / "raises.py", RAISES)
    finished = rehearse(tmp_path / "log", "launch.py", "2", sys.executable, job, when, ranks=2)
    assert finished.status == status, finished.output
    assert f"rehearsal: {own} violations" in finished.err
    marked = "(a consequence of: RuntimeError on rank 1)"
    assert (marked in finished.err) == (own == 0), finished.output
    told = audit(tmp_path / "log")
    (found,) = [finding for finding in told["findings"] if finding["rule"] == "rule-broken"]
    assert found["message"].endswith(marked) == (own == 0)
    assert told["first_finding"]["rule"] == ("rule-broken" if own else "ended-by-exception")


def test_windows_after_one_that_failed_are_a_consequence_on_all_ranks() -> None:
    """Rank 0 waits in vain for the window that NCCL refused to rank 1, which then asks for another one."""
    faults = "ncclCommWindowRegister:fail@1=3#rank1"
    job = ("launch.py", "2", sys.executable, "windows.py", "failing_on_one")
    env = {"TRACEHOOK_EMU_FAULTS": faults, "TRACEHOOK_EMU_WINDOW_TIMEOUT": "3"}
    finished = run_command(*job, devices=2, env=env, cold=True)  # the rank itself ends with 86
    assert finished.status == 1, finished.output
    assert "rehearsal: 0 violations\nrehearsal: 2 more, consequences of failures that came before:" in finished.err
    why = "(a consequence of: ncclCommWindowRegister failed on rank 1 of its communicator, a fault that was played)"
    assert finished.err.count(why) >= 2
    assert "  W1 x1: " in finished.err
    assert "  W12 x1: " in finished.err


def test_only_what_can_follow_is_marked() -> None:
    """Another communicator, an earlier moment, and a rule that has nothing to do with it stay violations."""
    failure = Failure(t_ns=10, pid=1, comm="ab", why="a fault")
    raised = Failure(t_ns=20, pid=2, comm="", why="ValueError on rank 1")
    row = {"comm": "ab", "pid": 1, "rule": "W12", "t_ns": 15, "consequence_of": ""}
    cases = [
        (row, "a fault"),
        (row | {"comm": "cd"}, ""),
        (row | {"t_ns": 9}, ""),
        (row | {"rule": "L7"}, ""),
        (row | {"rule": "L8"}, ""),
        (row | {"comm": "cd", "rule": "W1", "t_ns": 30}, "ValueError on rank 1"),
        (row | {"comm": "cd", "rule": "C4", "t_ns": 30}, ""),
        (row | {"comm": "cd", "rule": "C4", "t_ns": 30, "pid": 2}, "ValueError on rank 1"),
        (row | {"consequence_of": "rule W7"}, "rule W7"),
    ]
    rows = [dict(each) for each, _ in cases]
    mark(rows, [raised, failure])
    assert [each["consequence_of"] for each in rows] == [why for _, why in cases]
