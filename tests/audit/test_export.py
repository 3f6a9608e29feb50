"""`tracehook export`: Parquet files have what the logs and rings have, each event once, whoever was killed."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from support.audits import BEGIN, Audit
from support.exported import events, in_logs
from support.parted import Program, churn
from support.rehearsal import ROOT
from typer.testing import CliRunner

from audit.goldens import unpack
from tracehook.audit.fields import FIELDS
from tracehook.commands import app
from tracehook.export.parquet import export
from tracehook.log.lines import LogError

GOLDEN = ROOT / "tests" / "audit" / "golden"
PAGE = (ROOT / "docs" / "export.md").read_text()


@pytest.mark.parametrize("name", ["clean", "placement-differs", "ended-by-exception"])
def test_files_have_every_event_of_the_logs(tmp_path: Path, name: str) -> None:
    """And a second export adds none."""
    export(GOLDEN / name, tmp_path)
    wanted = in_logs(GOLDEN / name)
    assert events(tmp_path) == wanted
    assert export(GOLDEN / name, tmp_path).events == 0
    assert events(tmp_path) == wanted


def test_values_are_those_of_the_lines(tmp_path: Path) -> None:
    """Of an allocation: its memory, its rank, and when it was."""
    (tmp_path / "logs").mkdir()
    program = Program(tmp_path / "logs", rank=3)
    program.join(1)
    program.alloc()
    export(tmp_path / "logs", tmp_path / "out")
    rows = events(tmp_path / "out", "job, comm, host, pid, rank, seq, segment, addr, size, time, event")
    ((*found, time, _),) = (row for row in rows if row[-1] == "segment.alloc")
    assert found == ["job", None, "h", 10, 3, 3, 1, "0x200000", 1 << 21]
    assert str(time) == "2026-11-24 06:00:00.000002"


def test_each_export_adds_what_is_new(tmp_path: Path) -> None:
    """Also of logs that throw their oldest lines away: what was exported stays, and no checkpoint is exported."""
    (tmp_path / "logs").mkdir()
    program = Program(tmp_path / "logs")
    program.join(1)
    for _ in range(12):
        churn(program, 1500)
        program.say_aside("communicator.calls", comm=f"{1:016x}", comm_id=1)
        assert export(tmp_path / "logs", tmp_path / "out").events > 0
    assert program.parts.number > 8
    numbers = [seq for (seq,) in events(tmp_path / "out", "seq") if seq is not None]
    assert numbers == list(range(1, program.seq + 1))
    names = [name for (name,) in events(tmp_path / "out", "event")]
    assert names.count("communicator.calls") == 12
    assert names.count("trace.begin") == 1


def test_a_line_that_is_not_whole_yet_is_exported_when_it_is(tmp_path: Path) -> None:
    """The process may be writing it."""
    (tmp_path / "logs").mkdir()
    program = Program(tmp_path / "logs")
    program.alloc()
    (log,) = (tmp_path / "logs").iterdir()
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    assert export(tmp_path / "logs", tmp_path / "out").events == 2
    log.write_bytes(whole)
    assert export(tmp_path / "logs", tmp_path / "out").events == 1


def test_a_file_has_one_process_after_another(tmp_path: Path) -> None:
    """Each in the order of its events; and every file has every column, also one that none of its events has."""
    export(GOLDEN / "clean", tmp_path)
    columns = set()
    for file in (tmp_path / "event").rglob("*.parquet"):
        rows = duckdb.sql(f"SELECT process, t_ns FROM '{file}'").fetchall()
        processes = [name for name, _ in rows]
        assert len(set(processes)) == 1 + sum(one != other for one, other in pairwise(processes))
        assert all(one[1] <= other[1] for one, other in pairwise(rows) if one[0] == other[0])
        columns.add(tuple(duckdb.sql(f"FROM '{file}'").columns))
    assert len(columns) == 1
    assert set(FIELDS) <= set(*columns)


@pytest.mark.parametrize("job", ["plain", "a b/c=%41", "übung", None])
def test_a_job_keeps_its_name(tmp_path: Path, job: str | None) -> None:
    """Also one that no folder can have."""
    (tmp_path / "logs").mkdir()
    first = {**BEGIN, "host": "h", "pid": 1, "rank": 0, "world_size": 1, "time": now()}
    (tmp_path / "logs" / "job.rank0.h.1.jsonl").write_text(json.dumps(first | ({"job": job} if job else {})) + "\n")
    export(tmp_path / "logs", tmp_path / "out")
    assert events(tmp_path / "out", "job") == [(job or BEGIN.get("job"),)]


KILLED_AT_A_LINE = """
import os, signal, sys
from pathlib import Path
from tracehook.export.parquet import export

left = int(sys.argv[3])
def trace(frame, event, _):
    global left
    if "/tracehook/export/" not in frame.f_code.co_filename:
        return None
    left -= event == "line"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
export(Path(sys.argv[1]), Path(sys.argv[2]))
sys.settrace(None)
"""


@pytest.mark.timeout(400)  # some forty processes
def test_a_kill_of_the_export_leaves_nothing_twice(tmp_path: Path) -> None:
    """At any line of it. The next run finds what is missing."""
    (tmp_path / "logs").mkdir()
    programs = [Program(tmp_path / "logs", rank=rank, ranks=2) for rank in range(2)]

    def killed_at(line: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED_AT_A_LINE, str(tmp_path / "logs"), str(tmp_path / "out"), str(line)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for program in programs:
        program.join(1)
    moved = 0
    for line in count(5, 13):
        for program in programs:
            program.free(program.alloc())
        done = killed_at(line)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        moved += any((tmp_path / "out").glob(".batch-*[!w]"))
    assert line > 100
    assert moved > 0, "no kill fell between the files of a batch"
    export(tmp_path / "logs", tmp_path / "out")
    assert events(tmp_path / "out") == in_logs(tmp_path / "logs")
    left = [file.name for file in (tmp_path / "out").iterdir() if file.name.startswith(".batch")]
    assert left == []


def test_two_exports_at_a_time_are_refused(tmp_path: Path) -> None:
    """The second one says so in a line."""
    export(GOLDEN / "clean", tmp_path)
    (lock,) = tmp_path.glob(".lock-*")
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LogError, match=f"{tmp_path}: another process exports to it; wait until it has ended"):
            export(GOLDEN / "clean", tmp_path)


def test_lines_that_are_no_events_are_counted(tmp_path: Path) -> None:
    """They are left out, and the command says how many there are."""
    (tmp_path / "logs").mkdir()
    program = Program(tmp_path / "logs")
    (log,) = (tmp_path / "logs").iterdir()
    with log.open("a") as file:
        file.write('what is this\n{"event": 5}\n')
    program.alloc()
    done = CliRunner().invoke(app, ["export", "--over", str(tmp_path / "logs"), str(tmp_path / "out")])
    assert (done.exit_code, done.stdout) == (0, "new events: 3, of logs: 1\n")
    assert done.stderr == "tracehook export: lines that are no events, left out; tracehook audit names them: 2\n"


def test_the_command_waits_for_the_first_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --every: it may start before the job does. It says once for what it waits."""
    whole = unpack(GOLDEN / "clean", tmp_path / "aside")
    waited: list[float] = []

    def begin_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            whole.rename(tmp_path / "logs")

    command = importlib.import_module("tracehook.commands.export")
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=begin_meanwhile))
    done = CliRunner().invoke(app, ["export", "--every", "0.1", str(tmp_path / "logs"), str(tmp_path / "out")])
    assert waited == [0.1] * 3
    assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1)
    assert done.stderr.startswith("tracehook export: waits for logs: ")
    export(GOLDEN / "clean", tmp_path / "out")
    assert events(tmp_path / "out") == in_logs(GOLDEN / "clean")


def test_rings_of_other_hosts_wait_for_the_end_of_the_job(tmp_path: Path) -> None:
    """Their processes may still run. The command says so; then it adds what is missing."""
    logs = unpack(GOLDEN / "no-end", tmp_path)
    for file in logs.glob("*.jsonl"):
        file.write_bytes(file.read_bytes().replace(b'"host":"vm"', b'"host":"elsewhere"', 1))
    done = CliRunner().invoke(app, ["export", str(logs), str(tmp_path / "out")])
    assert done.exit_code == 0
    assert "logs of other hosts without an end: " in done.stderr
    assert "--over" in done.stderr
    before = len(events(tmp_path / "out"))
    done = CliRunner().invoke(app, ["export", "--over", str(logs), str(tmp_path / "out")])
    assert done.stderr == ""
    assert len(events(tmp_path / "out")) > before
    assert events(tmp_path / "out") == in_logs(logs)


@pytest.mark.parametrize("taker", ["a process", "a thread"])
def test_a_pid_that_another_took_over_is_no_living_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taker: str
) -> None:
    """The process of the log began before whatever has its number now, or that is the number of a thread."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: "h")
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    pid = os.getpid() if taker == "a process" else thread.native_id
    log_of_pid(tmp_path / "logs", pid, "2026-11-24T06:00:00+00:00" if taker == "a process" else now())
    try:
        assert export(tmp_path / "logs", tmp_path / "out").growing == 0
    finally:
        done.set()
        thread.join()


def test_a_process_that_runs_is_left_for_the_next_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ring is read when it has ended."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: "h")
    log_of_pid(tmp_path / "logs", os.getpid(), now())
    assert export(tmp_path / "logs", tmp_path / "out").growing == 1


def log_of_pid(folder: Path, pid: int | None, time: str) -> None:
    """Write a log that has no end."""
    first = {**BEGIN, "host": "h", "pid": pid, "job": "job", "rank": 0, "world_size": 1, "time": time}
    (folder / f"job.rank0.h.{pid}.jsonl").write_text(json.dumps(first) + "\n")


def now() -> str:
    """Return the time as a log has it."""
    return datetime.now(UTC).isoformat()


def test_a_directory_without_logs_is_refused(tmp_path: Path) -> None:
    """Exit status 2, and one line."""
    done = CliRunner().invoke(app, ["export", str(tmp_path), str(tmp_path / "out")])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export a job of which one rank has no end and one communicator lacks a rank, to `parquet` in this folder."""
    (tmp_path / "logs").mkdir()
    first, second = (Program(tmp_path / "logs", rank=rank, ranks=2) for rank in range(2))
    for program in (first, second):
        program.join(1)
    first.join(2)
    first.free(first.alloc())
    first.end()
    export(tmp_path / "logs", tmp_path / "parquet")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("exported")
def test_the_questions_of_the_page_in_duckdb() -> None:
    """Each has its answer."""
    registrations, missing, last = (duckdb.sql(sql).fetchall() for sql in re.findall(r"```sql\n(.*?)```", PAGE, re.S))
    assert registrations == [(0, 1, None)]
    assert missing == [(f"{2:016x}", 2, 1)]
    assert [(process, rank, event) for process, rank, _, event in last] == [("job.rank1.h.8", 1, "communicator.ready")]


@pytest.mark.usefixtures("exported")
def test_the_questions_of_the_page_in_polars() -> None:
    """They have the same answers."""
    pytest.importorskip("polars")
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, found)
    assert found["registrations"].rows() == [(0, 1, 0.0)]
    assert found["missing"].rows() == [(f"{2:016x}", 2, 1)]
    assert [(row[0], row[1], row[3]) for row in found["without_end"].rows()] == [
        ("job.rank1.h.8", 1, "communicator.ready")
    ]


@pytest.mark.parametrize(
    "name", sorted({folder.name for folder in GOLDEN.iterdir() if folder.is_dir()} - {"damaged-file"})
)
def test_the_audit_of_an_export_is_that_of_the_logs(tmp_path: Path, name: str) -> None:
    """To the letter, apart from damaged lines, which no export has."""
    logs = unpack(GOLDEN / name, tmp_path)
    export(logs, tmp_path / "out", over=True)
    of_logs, of_export = (
        json.loads(Audit(folder, "--json", "--max-findings", "0").out) for folder in (logs, tmp_path / "out")
    )
    for found in (of_logs, of_export):
        del found["directory"]
    assert of_export == of_logs
