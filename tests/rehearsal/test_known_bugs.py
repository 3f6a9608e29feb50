"""Bugs that are known: what the emulation plays, the audit names them after; what bears on a job is said before."""

import json
import os
from pathlib import Path

from support.rehearsal import Rehearsal, rehearse

from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.audit.verdict import Filter, judge

SAYS = "bears on this job"
# The bug "nccl 2.28, sends first" is of this NCCL, whichever torch is installed.
LEGACY = {"NCCL_LEGACY_CUDA_REGISTER": "1", "SYMM_REGISTER_LOCAL": "all", "TRACEHOOK_EMU_NCCL_VERSION": "22809"}


def named(log: Path) -> list[str]:
    """Return the bugs that the audit says the first finding looks like."""
    with Store(log) as store:
        return [found.bug.name for found in judge(store, check(store), Filter()).known]


def test_a_window_for_which_all_wait_looks_like_a_lost_message(tmp_path: Path) -> None:
    """All ranks are in ncclCommWindowRegister, and it does not come back for longer than the time-out."""
    env, faults = {"SYMM_REGISTER_TIMEOUT": "3"}, "ncclCommWindowRegister:slow@1=6000ms"
    run = rehearse("symmetric_scopes.py", "nested_same", ranks=2, log=tmp_path, env=env, faults=faults)
    assert "register.stalled" in {event["event"] for log in run.logs for event in log.events}, run.output
    assert named(tmp_path) == ["nccl #2379"]


def start_of(tmp_path: Path, **settings: str) -> tuple[Rehearsal, list[str]]:
    """Play a job of two ranks that does little, and return it with its lines about bugs."""
    run = rehearse("plain.py", ranks=2, log=tmp_path, env=settings)
    return run, run.finished.lines(SAYS)


def test_one_rank_says_which_dangerous_bug_bears_on_the_job(tmp_path: Path) -> None:
    """With NCCL_LEGACY_CUDA_REGISTER=1 a send before a gather may leave the gather waiting; the log has the setting."""
    run, lines = start_of(tmp_path, **LEGACY)
    [line] = lines
    assert "nccl 2.28, sends first bears on this job (NCCL 2.28.9, segments are registered" in line
    assert "NCCL_LEGACY_CUDA_REGISTER=1" in run.logs[0].begin["nccl_settings"]


def test_doctor_names_bugs_that_bear_on_a_job_or_may(tmp_path: Path) -> None:
    """Those that are certain come first; of the others it says what they depend on."""
    script = tmp_path / "doctor.py"
    script.write_text(
        "import sys\nfrom tracehook.commands import main\nsys.argv[1:] = ['doctor', '--job', '--json']\nmain()\n"
    )
    run = rehearse(script, env=LEGACY)
    told = json.loads(run.output[run.output.index("{") : run.output.rindex("}") + 1])
    assert told["works"], os.linesep.join(told["found"].values())
    certain = [bug["bug"] for bug in told["bugs"] if not bug["if"]]
    assert "nccl 2.28, sends first" in certain
    [window] = [bug for bug in told["bugs"] if bug["bug"] == "nccl #2379"]
    assert window["if"] == ["there are windows"]


def test_bugs_that_cannot_be_read_keep_no_hook_from_the_allocator(tmp_path: Path) -> None:
    """The list is read when CUDA comes up, and is no part of what the hook does."""
    run = rehearse("cannot_import.py", log=tmp_path)
    assert (run.status, run.finished.err) == (0, ""), run.output
    assert run.facts() == {"state": "on", "reasons": []}
