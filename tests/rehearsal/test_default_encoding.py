"""No file is read or written in whatever encoding the machine has: Python says so where it is asked to."""

from __future__ import annotations

import sys
from pathlib import Path

from support.processes import run
from support.rehearsal import rehearse

ASKED = {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "default::EncodingWarning"}


def test_job_rehearsal_and_audit_name_their_encodings(tmp_path: Path) -> None:
    """Neither a rank with windows, nor the command that rehearses it, nor the audit of its logs has such a warning."""
    job = rehearse("joins_threads.py", ranks=1, log=tmp_path, cold=True, env=ASKED, timeout=100)
    job.assert_good()
    audit = run([sys.executable, "-m", "tracehook", "audit", tmp_path], ASKED, 100)
    assert audit.status == 0, audit.output
    said = (job.finished.err + audit.err).splitlines()
    assert [line for line in said if "EncodingWarning" in line and "/tracehook/" in line] == []
