"""Logs and lines that are very long."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, UNUSABLE, Audit, change, log_of
from support.multiplied import multiply, read

from tracehook.audit import limits
from tracehook.audit.limits import TooMuch
from tracehook.audit.store import Store


def _measured(directory: Path, timeout: float) -> tuple[int, str, float, int]:
    """Audit in a process of its own; return its status, output, seconds and most bytes of memory."""
    began = time.monotonic()
    code = "import resource, sys; from tracehook.commands import app\ntry:\n app(sys.argv[1:])\nfinally:\n " + (
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", str(directory)], capture_output=True, text=True, timeout=timeout
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began, int(done.stderr.split()[-1]) << 10


@pytest.mark.timeout(600)
def test_large_log(tmp_path: Path) -> None:
    """A log of 100 MB (TRACEHOOK_TEST_LOG_MB) is read within 2 GiB of memory."""
    size = int(os.environ.get("TRACEHOOK_TEST_LOG_MB", "100")) << 20
    template = read(GOLDEN)
    each = sum(file.stat().st_size for file in GOLDEN.glob("*.jsonl")) / sum(map(len, template))
    multiply(template, tmp_path, ranks=1, events=int(size / each))
    status, said, seconds, memory = _measured(tmp_path, 590)
    print(f"{size >> 20} MiB: {seconds:.1f} s, {memory >> 20} MiB of memory\n{said[-600:]}")
    assert status == CLEAN, said
    assert memory < 2 << 30, said


def test_long_line(logs: Path) -> None:
    """A line of 100 MB (TRACEHOOK_TEST_LINE_MB) is left out, within 2 GiB of memory."""
    size = int(os.environ.get("TRACEHOOK_TEST_LINE_MB", "100")) << 20
    log = log_of(logs)
    lines = log.read_bytes().splitlines(keepends=True)
    with log.open("wb") as file:
        file.writelines([*lines[:20], b'{"event":"'])
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))
        file.writelines([b'"}\n', *lines[20:]])
    status, said, seconds, memory = _measured(logs, 150)
    print(f"{size >> 20} MiB in a line: {seconds:.1f} s, {memory >> 20} MiB of memory")
    assert status == FINDINGS, said
    assert log.name in said
    assert "Traceback" not in said
    assert memory < 2 << 30, said


def test_a_rule_that_takes_too_much_is_said(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that cannot be checked for want of room is a finding; the others are checked."""
    keep = Store.keep

    def scant(store: Store, table: str, sql: str) -> int:
        if sql.startswith("-- severity: error\n-- sentence: A segment lived"):
            raise TooMuch("it needs more than there is")
        return keep(store, table, sql)

    change(log_of(logs), lambda lines: lines[:-1])
    monkeypatch.setattr(Store, "keep", scant)
    done = Audit(logs).expect(FINDINGS, "no-end", "never-registered")
    assert "this rule could not be checked: it needs more than there is" in done.out


def test_no_room_at_all(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the logs cannot be read into a database at all, a line says so."""
    template = read(GOLDEN)
    multiply(template, logs, ranks=2, events=50_000)
    for file in logs.glob("clean.*"):
        file.unlink()
    monkeypatch.setattr(limits, "MEMORY", "10MB")
    monkeypatch.setattr(limits, "DISK", "1MB")
    Audit(logs).expect(UNUSABLE, "it needs more than 10MB of memory and 1MB of disk")


WITHOUT_END = """
from tracehook.audit.store import Store
from tracehook.commands import main

read = Store._read
def read_without_end(store, *arguments):
    read(store, *arguments)
    print(*(file.name for file in store._scratch.iterdir()), flush=True)
    store._database.execute("SELECT sum(range) FROM range(1 << 62)")  # neither ends nor takes memory
Store._read = read_without_end
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_audit_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """What an audit wrote for itself goes when it is told to end, in the midst of its work."""
    logs, scratch = tmp_path / "logs", tmp_path / "scratch"
    logs.mkdir()
    scratch.mkdir()
    multiply(read(GOLDEN), logs, ranks=1, events=200_000)
    audit = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_END, "audit", logs],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_scratch_in(scratch),
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # of a job in the background SIGINT is ignored
    )
    try:
        assert audit.stdout is not None
        assert b"audit.duckdb" in audit.stdout.readline().split()
        audit.send_signal(number)
        said, _ = audit.communicate(timeout=60)
    finally:
        audit.kill()
    assert audit.returncode == 128 + signal.SIGINT, said
    assert b"Traceback" not in said
    assert list(scratch.iterdir()) == []


def _scratch_in(directory: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(directory)}
