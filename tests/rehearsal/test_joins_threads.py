"""A program that uses the whole of tracehook finds none of its threads, and hears of no file without an encoding."""

import sys
from pathlib import Path

import pytest
from support.processes import run
from support.rehearsal import rehearse

ASKED = {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "default::EncodingWarning"}


@pytest.mark.parametrize("memory", ["torch", "vmm"])
def test_a_program_that_joins_all_threads_ends(tmp_path: Path, memory: str) -> None:
    """With a log, metrics, a store, alarms and windows."""
    env = {"SYMM_REGISTER_METRICS": str(tmp_path / "metrics"), "SYMM_REGISTER_MEMORY": memory}
    job = rehearse("joins_threads.py", ranks=2, log=tmp_path / "log", env=env).assert_good()
    expected = {"mine": [0, 1, 2], "count": 1, "followed": [], "count_at_the_end": 1}
    assert job.told == [expected] * 2, job.output


def test_job_rehearsal_and_audit_name_their_encodings(tmp_path: Path) -> None:
    """Neither a rank with windows, nor the command that rehearses it, nor the audit of its logs has such a warning."""
    job = rehearse("joins_threads.py", ranks=1, log=tmp_path, cold=True, env=ASKED, timeout=100).assert_good()
    audit = run([sys.executable, "-m", "tracehook", "audit", tmp_path], ASKED, 100)
    assert audit.status == 0, audit.output
    said = (job.finished.err + audit.err).splitlines()
    assert [line for line in said if "EncodingWarning" in line and "/tracehook/" in line] == []
