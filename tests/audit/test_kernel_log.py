"""What the kernel logged of a rank that failed stands in its finding: no memory was left, or a GPU had an error."""

import json
import os
import shutil
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.audits import FINDINGS, Audit, log_of, with_begin

from audit.goldens import GOLDENS, unpack
from tracehook.audit import kernel_log

KILLED = next(golden for golden in GOLDENS if golden.name == "rank-failed-killed")
PID = 16678  # of rank 3, which was killed
MEMORY = f"Memory cgroup out of memory: Killed process {PID} (python) total-vm:9 kB, anon-rss:8 kB"
XID = f"NVRM: Xid (PCI:0000:3b:00): 94, pid={PID}, name=python, Contained: SM (0x1). RST: No, D-RST: No"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OLD = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
OTHER = "Out of memory: Killed process 16676 (python) total-vm:9 kB"
SECOND = 1_000_000


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of this host since it started, of which rank 3 was killed."""
    found = unpack(KILLED.path, tmp_path)
    for rank in range(4):
        since_start = json.loads(log_of(found, rank).read_text().partition("\n")[0])["t_ns"]
        began = datetime.now(UTC) - timedelta(microseconds=(time.monotonic_ns() - since_start) / 1000)
        with_begin(log_of(found, rank), host=socket.gethostname(), time=began.isoformat())
    return found


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Path) -> Path:
    """The kernel's log, in which nothing is of this job."""
    file = tmp_path / "kmsg"
    monkeypatch.setattr(kernel_log, "FILE", file)
    monkeypatch.setattr(kernel_log, "sees_all_processes", lambda: True)
    shutil.copy("/dev/null", file)
    log(file, logs, "usb 1-1: new device", "Out of memory: Killed process 1 (init)")
    log(file, logs, MEMORY.replace("8 kB", "of an earlier process"), seconds=-3600)
    return file


def log(file: Path, logs: Path, *messages: str, seconds: int = 0) -> None:
    """Have the kernel log something, so many seconds after rank 3 began."""
    at = json.loads(log_of(logs, 3).read_text().partition("\n")[0])["t_ns"] // 1000 + seconds * SECOND
    with file.open("a") as out:
        out.writelines(f"6,{number},{at},-;{message}\n SUBSYSTEM=x\n" for number, message in enumerate(messages))


@pytest.mark.parametrize("line", [MEMORY, XID, LOST, OLD])
def test_the_finding_of_a_rank_that_failed_quotes_the_kernel(line: str, logs: Path, kernel: Path) -> None:
    """Where the kernel names its process; of an error of a GPU, also where it names none."""
    log(kernel, logs, line)
    said = Audit(logs).expect(FINDINGS, f"; the kernel's log says: {line}").out
    assert said.count("the kernel's log says") == 2, said  # the finding and the last line
    assert "(rank-failed): rank 3 ended without a word" in said


def test_what_the_kernel_logged_of_others_is_not_quoted(logs: Path, kernel: Path) -> None:
    """Of another process, of another time, of another start of the host, on another host."""
    assert "kernel's log" not in Audit(logs).out
    log(kernel, logs, OTHER)
    assert "kernel's log" not in Audit(logs).out
    log(kernel, logs, MEMORY)
    with_begin(log_of(logs, 3), time=(datetime.now(UTC) - timedelta(days=9)).isoformat())
    assert "kernel's log" not in Audit(logs).out
    with_begin(log_of(logs, 3), host="another")
    assert "kernel's log" not in Audit(logs).out


def test_a_kernel_whose_log_nobody_may_read_changes_nothing(logs: Path, kernel: Path) -> None:
    """As for a user of most hosts, and in a container."""
    log(kernel, logs, MEMORY)
    kernel.unlink()
    assert "kernel's log" not in Audit(logs).out


def test_the_log_of_this_kernel_is_read_to_its_end() -> None:
    """If we may read it; without waiting for more."""
    if not os.access(kernel_log.FILE, os.R_OK):
        pytest.skip(f"{kernel_log.FILE} cannot be read here")
    assert all(at >= 0 and message for at, message in kernel_log.records())
