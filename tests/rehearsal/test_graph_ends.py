"""The end of a group while a CUDA graph lives that was captured with it: NCCL waits for the graph without end.

So ncclCommFinalize, ncclCommDestroy and ncclCommAbort do (`localPersistentRefs` in NCCL's commDestroySync; 2.28.9 and
2.30.7 alike). The emulated NCCL waits to its deadline, and then says rule C8.
"""

from pathlib import Path
from typing import Any

import pytest
from support.rehearsal import Rehearsal
from support.symmetric import NEW, OLD, alike, assert_broken, both, play

DEADLINE = 6  # of the emulated NCCL where an end waits in vain, seconds


def end(case: str, log: Path, version: str, **env: Any) -> Rehearsal:
    """Run one case; the capture was right in each."""
    run = play("graph_ends.py", case, log=log, version=version, **env)
    assert (alike(run, "sum"), alike(run, "windows")) == (3.0, 1)
    assert both(run, "late") == [0, 0], "nothing is deregistered on a communicator that is gone"
    return run


def assert_said(run: Rehearsal) -> None:
    """Before the call that waits, each rank said what it waits for, and left the window to NCCL."""
    assert [event["graphs"] for event in run.events("communicator.graphs")] == [1, 1], run.output
    assert run.output.count("NCCL waits for them without end: release graphs first") == 2, run.output
    assert run.events("deregister.window") == [], run.output


@pytest.mark.parametrize(("case", "version"), [("kept", OLD), ("aborted", NEW)])
def test_a_group_that_ends_before_its_graph_is_named(tmp_path: Path, case: str, version: str) -> None:
    """A destroy, or an abort, that NCCL would never return from is said, and no window goes from under the graph."""
    run = end(case, tmp_path, version, TRACEHOOK_EMU_WINDOW_TIMEOUT=str(DEADLINE))
    assert_broken(run, "C8")
    assert_said(run)
    assert min(both(run, "seconds")) >= DEADLINE


def test_a_graph_that_was_released_first_ends_in_order(tmp_path: Path) -> None:
    """Once the graph is gone, all windows are undone before the destroy, also without release_graphs."""
    run = end("released", tmp_path, OLD).assert_good()
    assert run.events("communicator.graphs") == []
    assert [event["ok"] for event in run.events("deregister.window")] == [True, True]


def test_a_graph_that_is_released_meanwhile_ends_the_wait(tmp_path: Path) -> None:
    """Another thread releases the graph: the destroy returns, no rule is broken, and NCCL ended the window itself."""
    run = end("released_meanwhile", tmp_path, NEW).assert_good()
    assert_said(run)
    assert max(both(run, "seconds")) < 50, "the emulation would end the wait after 60 s"
