"""A job that still runs: its logs have no end, and that is no fault."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, Audit, change, log_of, with_begin

from tracehook.log.folders import safe


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


def test_a_process_runs_whoever_set_the_clock_since_it_began(logs: Path) -> None:
    """Its ring has the new clock: the host has not started anew."""
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    with_begin(log_of(logs), pid=os.getpid(), time=hour_ago, t_ns=time.monotonic_ns())
    Audit(logs).expect(FINDINGS, "(no-end): rank 1 did not end in order")
    epoch_ns = time.time_ns() - time.monotonic_ns()
    header = struct.pack("<8sIIQQQQQQQ", b"THRING02", 4096, 96, 64, 0, 0, 0, epoch_ns, os.getpid(), time.monotonic_ns())
    log_of(logs).with_suffix(".ring").write_bytes(header.ljust(4096 + 64 * 96, b"\0"))
    Audit(logs).expect(CLEAN, "Clean so far: 1 process still runs")


@pytest.mark.parametrize(("seconds", "is_told"), [(9, False), (12, True)])
def test_processes_that_run_and_do_nothing_may_hang(logs: Path, seconds: int, is_told: bool) -> None:
    """Outside of NCCL, where no rule sees them wait for each other: the last line says for how long."""
    with_begin(log_of(logs), pid=os.getpid(), time=datetime.now(UTC).isoformat())
    last_ns = json.loads(log_of(logs).read_bytes().splitlines()[-1])["t_ns"]
    looked_ns, epoch_ns = last_ns + seconds * 10**9, time.time_ns() - time.monotonic_ns()
    header = struct.pack("<8sIIQQQQQQQ", b"THRING02", 4096, 96, 64, 0, 0, 0, epoch_ns, os.getpid(), looked_ns)
    log_of(logs).with_suffix(".ring").write_bytes(header.ljust(4096 + 64 * 96, b"\0"))
    said = Audit(logs).expect(CLEAN, "Clean so far: 1 process still runs").out
    assert (f"In the last {seconds} s no process logged or called anything" in said) == is_told, said


def test_a_process_that_has_gone_does(logs: Path) -> None:
    """The same log once its process has ended; nobody waited for it yet. Of another host's process nobody can tell."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
        with_begin(log_of(logs), pid=ended.pid)
        Audit(logs).expect(FINDINGS, "First divergence", "(no-end): rank 1 did not end in order")
    with_begin(log_of(logs), pid=os.getpid(), host="another")
    Audit(logs).expect(FINDINGS, "(no-end): rank 1 did not end in order")


@pytest.mark.parametrize("has_file", [True, False])
def test_of_a_process_of_this_host_its_number_tells_before_its_first_line(logs: Path, has_file: bool) -> None:
    """Whether it lives, or was killed a moment ago at the birth of its log: the file is named for host and number."""
    log_of(logs).unlink()
    looked_ns = time.monotonic_ns()
    epoch_ns = time.time_ns() - looked_ns

    def give_birth(pid: int) -> Path:
        path = logs / f"clean.rank1.{safe(socket.gethostname())}.{pid}.jsonl"
        if has_file:
            path.touch()
        header = struct.pack("<8sIIQQQQQQQ", b"THRING02", 4096, 96, 64, 0, 0, 0, epoch_ns, pid, looked_ns)
        path.with_suffix(".ring").write_bytes(header.ljust(4096 + 64 * 96, b"\0"))
        return path

    lives = give_birth(os.getpid())
    Audit(logs).expect(CLEAN, "Clean so far: 1 process still runs")
    lives.unlink(missing_ok=True)
    lives.with_suffix(".ring").unlink()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        give_birth(ended.pid)
        Audit(logs).expect(FINDINGS, "(no-end): rank 1 did not end in order")
