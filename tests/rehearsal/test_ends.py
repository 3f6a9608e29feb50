"""Communicators and processes that end badly: no call on a dead communicator, and the log says what happened.

More ends of programs: harmless/test_harmless_ends.py; of groups: test_lives_of_nccl2.py.
"""

from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import QUICK, rehearse, write_job
from support.torch_versions import ENDS_WRAPPED

from tracehook.log import reader


def _assert_no_call_after_abort(log: reader.ProcessLog) -> None:
    dead: set[int] = set()
    for event in log.events:
        if event["event"] == "communicator.abort":
            dead.add(event["comm_id"])
        elif event["event"] in ("register.local", "deregister.local"):
            assert event["comm_id"] not in dead, event


def test_watchdog_tears_the_process_down(tmp_path: Path) -> None:
    """By torch's default the watchdog ends the process of a collective that hangs; its log is read from the ring."""
    run = rehearse("never_arrives.py", ranks=2, log=tmp_path, env=QUICK, timeout=60)
    assert not run.finished.late, run.output
    assert run.broken == [], run.output
    assert run.status not in (0, 86), run.output
    log = run.log(0)
    assert not log.ended
    assert not log.torn
    sizes = [e["size"] for e in run.events("segment.alloc", 0)]
    assert run.facts(0)["last"] in sizes
    _assert_no_call_after_abort(log)
    assert run.log(1).ended, "the other rank ended by itself"


def test_watchdog_aborts(tmp_path: Path) -> None:
    """Where the watchdog aborts the communicator, its registrations are dropped without a call, and the log says so.

    With 2, clean up only, the program goes on: test_lives_of_nccl2.py.
    """
    env = QUICK | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    run = rehearse("never_arrives.py", ranks=2, log=tmp_path, env=env, timeout=90)
    assert not run.finished.late, run.output
    assert run.broken == [], run.output
    log = run.log(0)
    aborts = run.events("communicator.abort", 0)
    assert len(aborts) == 1, run.output
    assert aborts[0]["registrations"] == 2
    _assert_no_call_after_abort(log)


@pytest.mark.parametrize(("way", "status", "ended"), [("os._exit", 4, False), ("thread", 0, True)])
def test_end_with_live_groups(tmp_path: Path, way: str, status: int, ended: bool) -> None:
    """With live groups the exit status is the program's, and the log is closed, or else read whole from the ring."""
    run = rehearse("ends.py", way, log=tmp_path, timeout=40, cold=True)
    assert not run.finished.late, run.output
    assert run.status == status, run.output
    log = run.log()
    assert log.ended == ended
    assert log.path.with_suffix(".ring").exists() != ended
    assert len(run.events("segment.alloc")) == 1
    assert len(run.events("communicator.pending")) == 1
    _assert_no_call_after_abort(log)
    said = [event["status"] for event in log.events if "status" in event]
    assert said == [status] * (way == "os._exit")


def test_an_exception_that_ends_the_program_is_not_held(tmp_path: Path) -> None:
    """Its frames may hold a CUDA graph, and the end of a group waits for that without end."""
    job = write_job(
        tmp_path / "fails.py",
        """
import atexit, gc, sys, weakref
import torch
from common import tell

class Graph:
    pass

def fail():
    graph = Graph()
    atexit.register(late, weakref.ref(graph))
    raise ValueError

def late(graph):
    sys.last_type = sys.last_value = sys.last_traceback = sys.last_exc = None
    gc.collect()
    tell(is_gone=graph() is None)

torch.zeros(1, device="cuda")
fail()
""",
    )
    run = rehearse(job, log=tmp_path / "log", cold=True)
    assert run.status == 1
    assert run.facts() == {"is_gone": True}, run.output


def test_a_group_that_torch_wraps_is_clean(tmp_path: Path) -> None:
    """Before torch 2.14, with DETAIL, dist.destroy_process_group() reaches no communicator, and the program cannot."""
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "SYMM_REGISTER_LOCAL": "all"}
    run = rehearse("plain.py", ranks=2, log=tmp_path, env=env).assert_good()
    made, undone = (len(run.events(name)) for name in ("register.local", "deregister.local"))
    assert made == undone > 0 if ENDS_WRAPPED else made > undone
    Audit(tmp_path).expect(CLEAN)
