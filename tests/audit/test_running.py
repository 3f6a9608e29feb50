"""A job that still runs: its logs have no end, and that is no fault."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, Audit, change, log_of, with_begin


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of a clean job of two ranks; that of rank 1 has no end, and has begun just now."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    change(log_of(tmp_path), lambda lines: [line for line in lines if b'"trace.end"' not in line])
    now = datetime.now(UTC).isoformat()
    for rank in (0, 1):
        with_begin(log_of(tmp_path, rank), host=socket.gethostname(), time=now)
    return tmp_path


def test_a_process_that_runs_breaks_no_rule(logs: Path) -> None:
    """The audit is clean so far, and says how many processes still run."""
    with_begin(log_of(logs), pid=os.getpid(), time=datetime.now(UTC).isoformat())
    Audit(logs).expect(CLEAN, "Clean so far: 1 process still runs")
    assert '"running": 1' in Audit(logs, "--json").expect(CLEAN).out


def test_a_process_that_has_gone_does(logs: Path) -> None:
    """The same log once its process has ended; nobody waited for it yet."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
        with_begin(log_of(logs), pid=ended.pid)
        Audit(logs).expect(FINDINGS, "First divergence", "(no-end): rank 1 did not end in order")


def test_a_log_of_another_host_without_a_ring_has_no_end(logs: Path) -> None:
    """Nobody can tell whether that process runs."""
    with_begin(log_of(logs), pid=os.getpid(), host="another")
    Audit(logs).expect(FINDINGS, "(no-end): rank 1 did not end in order")
