"""Forked and spawned children: no call into CUDA or NCCL by us, no hang, the parent's log untouched."""

from pathlib import Path

import pytest
from audit.goldens import audit
from support.audits import CLEAN, Audit
from support.processes import python
from support.rehearsal import Rehearsal, rehearse

from tracehook.log import reader

CHILD = 99


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A process with CUDA up, a live group and segments that forks twice."""
    return rehearse("forks.py", "after", log=tmp_path_factory.mktemp("forked"), timeout=40)


def test_children_end(forked: Rehearsal) -> None:
    """A child that does nothing, and one that asks for the status, end with 0 and break no rule."""
    forked.assert_good()
    assert forked.facts()["statuses"] == [0, 0]


def test_children_make_no_call(forked: Rehearsal) -> None:
    """Neither `status()`, `disable()`, `enable()` nor the end of a child calls CUDA or NCCL."""
    assert forked.facts(CHILD)["idle"] == [0, 0]
    assert forked.facts(CHILD)["calls"] == [0, 0]


def test_child_is_told(forked: Rehearsal) -> None:
    """The child's state is "forked", and `enable()` says what to do instead."""
    facts = forked.facts(CHILD)
    assert facts["states"] == ["forked", "forked"]
    assert facts["communicators"] == []
    assert "spawn" in facts["complaint"]


def test_parents_log_is_whole(forked: Rehearsal) -> None:
    """The parent's log has one beginning, one end and no gap, and the parent goes on registering."""
    assert forked.facts()["held"] == [2]
    log = forked.log()
    numbers = [event["seq"] for event in log.events if "seq" in event]
    assert numbers == list(range(1, len(numbers) + 1))
    names = [event["event"] for event in log.events]
    assert (names.count("trace.begin"), names.count("trace.end")) == (1, 1)
    assert {path.suffix for path in log.path.parent.iterdir()} == {".jsonl"}


@pytest.mark.parametrize("way", ["before", "enable"])
def test_fork_before_cuda(tmp_path: Path, way: str) -> None:
    """A child that was forked before CUDA came up is like any other, with a log of its own; it may call `enable()`."""
    run = rehearse("forks.py", way, log=tmp_path, timeout=40)
    assert run.facts()["statuses"] == [0], run.output
    run.assert_good()
    parent, child = run.facts(), run.facts(CHILD)
    assert parent["state"] == child["state"] == "on"
    assert parent["held"] == child["held"] == [1]
    logs = {log.begin["pid"]: log for log in run.logs}
    assert set(logs) == {parent["pid"], child["pid"]}
    for facts, size in ((parent, 24), (child, 48)):
        log = logs[facts["pid"]]
        assert str(log.path) == facts["log"]
        assert log.ended
        assert [e["size"] >> 20 for e in log.events if e["event"] == "segment.alloc"] == [size]


def test_a_child_of_a_process_that_switched_off_stays_off(tmp_path: Path) -> None:
    """`disable()` before the fork holds in the child, too, which follows its segments and registers none."""
    run = rehearse("forks.py", "disabled", log=tmp_path)
    assert run.facts()["statuses"] == [0], run.output
    assert (run.facts(CHILD)["state"], run.facts(CHILD)["held"]) == ("off", [0])


def test_ranks_that_were_forked_share_scopes(tmp_path: Path) -> None:
    """A rank that was forked before CUDA came up agrees with the others on the windows of a scope."""
    run = rehearse("forks.py", "ranks", str(tmp_path / "store"), log=tmp_path / "logs", devices=2)
    run.assert_good()
    assert run.facts()["statuses"] == [0], run.output
    for facts in (run.facts(), run.facts(CHILD)):
        assert (facts["sum"], facts["symmetric"]) == (2 * (1 << 18), True)
    assert "Clean" in audit(tmp_path / "logs")[0]


def test_a_child_that_leaves_a_scope_of_its_parent_says_nothing_for_it(tmp_path: Path) -> None:
    """The parent's scope goes on, and its memory is registered with that of the other ranks."""
    run = rehearse("forks.py", "scopes", ranks=2, log=tmp_path, cold=True).assert_good()
    for rank in range(2):
        facts = run.facts(rank)
        assert [facts[leave] for leave in ("in_order", "by_exception", "by_collector")] == [[3.0, True]] * 3
    assert (run.facts(0)["statuses"], run.facts(1)["statuses"]) == ([0, 0, 0], [0])
    Audit(tmp_path).expect(CLEAN)


def test_spawn(tmp_path: Path) -> None:
    """A spawned child has a service and a log of its own, and is of the job of its parent."""
    run = rehearse("forks.py", "spawn", log=tmp_path, timeout=60)
    run.assert_good()
    assert run.facts()["statuses"] == [0]
    child = run.facts(CHILD)
    assert (child["state"], child["held"]) == ("on", [1])
    assert child["pid"] in {log.begin["pid"] for log in run.logs}
    logs = reader.read_directory(tmp_path)
    (job,) = {log.begin["job"] for log in logs}
    assert len(logs) == 2
    assert all(log.path.name.startswith(f"{job}.") for log in logs)


def test_fork_without_cuda(tmp_path: Path) -> None:
    """A child of a process that never used CUDA ends at once, by sys.exit too, and leaves the parent's log alone."""
    code = """import os, sys, torch
for leave in (os._exit, sys.exit):
    pid = os.fork()
    if pid == 0:
        leave(5)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    env = {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": str(tmp_path)}
    run = python(code, env=env, timeout=30)
    assert (run.status, run.out, run.err) == (0, "5\n5\n", ""), run.output
    (log,) = reader.read_directory(tmp_path)
    assert log.ended
    assert [event["event"] for event in log.events] == ["trace.begin", "hook.enable", "trace.end"]


def test_a_fork_beside_calls_of_other_threads_leaves_no_lock_behind(tmp_path: Path) -> None:
    """What counts the calls of a rehearsal is free in a child, whatever another thread did when it was forked."""
    run = rehearse("forks_beside_calls.py", log=tmp_path, timeout=120)
    assert run.status == 0, run.output
    assert run.facts()["hung"] == 0
