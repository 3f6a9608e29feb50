"""`tracehook export`: Parquet files have what the logs and rings have, each event once, whoever was killed."""

import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.audits import BEGIN
from support.exported import events, in_logs
from support.parted import Program, churn
from support.rehearsal import ROOT
from typer.testing import CliRunner

from tracehook.audit.export import export
from tracehook.audit.fields import FIELDS
from tracehook.commands import app

GOLDEN = ROOT / "tests" / "audit" / "golden"
PAGE = (ROOT / "docs" / "log-schema.md").read_text().partition("\n## Logs as Parquet\n")[2]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder for logs."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def program(logs: Path) -> Program:
    """Return a program with a communicator."""
    made = Program(logs, rank=3)
    made.join(1)
    return made


@pytest.mark.parametrize("name", ["clean", "placement-differs", "ended-by-exception"])
def test_files_have_every_event_of_the_logs(tmp_path: Path, name: str) -> None:
    """A second export takes the place of the first."""
    wanted = in_logs(GOLDEN / name)
    for _ in range(2):
        assert export(GOLDEN / name, tmp_path).events == len(wanted)
        assert events(tmp_path) == wanted
    assert {file.name for file in tmp_path.iterdir()} == {"event.parquet", "process.parquet"}


def test_lines_that_two_parts_have_are_exported_once(tmp_path: Path, logs: Path, program: Program) -> None:
    """A part of a log begins with copies."""
    churn(program, 3000)
    assert program.parts.number > 1
    export(logs, tmp_path / "out")
    assert events(tmp_path / "out") == in_logs(logs)
    numbers = [seq for (seq,) in events(tmp_path / "out", "seq") if seq is not None]
    assert len(numbers) == len(set(numbers))


def test_values_are_those_of_the_lines(tmp_path: Path, logs: Path, program: Program) -> None:
    """Of an allocation: its memory, its rank, and when it was."""
    program.alloc()
    export(logs, tmp_path / "out")
    rows = events(tmp_path / "out", "job, comm, host, pid, rank, seq, segment, addr, size, time, event")
    ((*found, time, _),) = (row for row in rows if row[-1] == "segment.alloc")
    assert found == ["job", None, "h", 10, 3, 3, 1, "0x200000", 1 << 21]
    assert str(time) == "2026-11-24 06:00:00.000002"


def test_a_file_has_one_process_after_another(tmp_path: Path) -> None:
    """Each in the order of its events; and the file has every column, also one that none of its events has."""
    export(GOLDEN / "clean", tmp_path)
    file = duckdb.from_parquet(str(tmp_path / "event.parquet"))
    rows = file.project("process, t_ns").fetchall()
    processes = [name for name, _ in rows]
    assert len(set(processes)) == 1 + sum(one != other for one, other in pairwise(processes))
    assert all(one[1] <= other[1] for one, other in pairwise(rows) if one[0] == other[0])
    assert set(FIELDS) - {"world_size"} <= set(file.columns)


@pytest.mark.parametrize("job", ["plain", "a b/c=%41", "übung", None])
def test_a_job_keeps_its_name(tmp_path: Path, job: str | None, logs: Path) -> None:
    """Also one that no folder can have, and beside other jobs."""
    first = {**BEGIN, "host": "h", "pid": 1, "rank": 0, "world_size": 1, "time": "2026-11-24T06:00:00+00:00"}
    (logs / "job.rank0.h.1.jsonl").write_text(json.dumps(first | ({"job": job} if job else {})) + "\n")
    export(logs, tmp_path / "out")
    assert events(tmp_path / "out", "job") == [(job or BEGIN.get("job"),)]


KILLED_AT_A_LINE = """
import os, signal, sys
from pathlib import Path
from tracehook.audit.export import export

left = int(sys.argv[3])
def trace(frame, event, _):
    global left
    if not frame.f_code.co_filename.endswith("/audit/export.py"):
        return None
    left -= event == "line"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
export(Path(sys.argv[1]), Path(sys.argv[2]))
sys.settrace(None)
"""


@pytest.mark.parametrize("line", [20, *range(40, 63, 3)])
def test_a_kill_of_the_export_leaves_whole_files(tmp_path: Path, line: int, logs: Path, program: Program) -> None:
    """At any line of it: those of before, or the new ones."""
    before = export(logs, tmp_path / "out").events
    program.free(program.alloc())
    command = [sys.executable, "-c", KILLED_AT_A_LINE, str(logs), str(tmp_path / "out"), str(line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr  # 0: it was over before
    assert len(events(tmp_path / "out")) in (before, before + 4)
    assert export(logs, tmp_path / "out").events == before + 4
    assert events(tmp_path / "out") == in_logs(logs)


def test_lines_that_are_no_events_are_counted(tmp_path: Path, logs: Path) -> None:
    """They are left out, and the command says how many there are."""
    program = Program(logs)
    (log,) = logs.iterdir()
    with log.open("a") as file:
        file.write('what is this\n{"event": 5}\n')
    program.alloc()
    done = CliRunner().invoke(app, ["export", str(logs), str(tmp_path / "out")])
    assert (done.exit_code, done.stdout) == (0, "events: 3, of logs: 1\n")
    assert done.stderr == "tracehook export: lines that are no events, left out; tracehook audit names them: 2\n"


def test_a_directory_without_logs_is_refused(tmp_path: Path) -> None:
    """Exit status 2, and one line."""
    done = CliRunner().invoke(app, ["export", str(tmp_path), str(tmp_path / "out")])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    """Export a job of which one rank has no end and one communicator lacks a rank, to `parquet` in this folder."""
    first, second = (Program(logs, rank=rank, ranks=2) for rank in range(2))
    for program in (first, second):
        program.join(1)
    first.join(2)
    first.free(first.alloc())
    first.end()
    export(logs, tmp_path / "parquet")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("exported")
def test_the_questions_of_the_page_in_duckdb() -> None:
    """Each has its answer."""
    registrations, missing, last = (
        duckdb.execute(sql).fetchall() for sql in re.findall(r"```sql\n(.*?)```", PAGE, re.S)
    )
    assert registrations == [(0, 1, None)]
    assert missing == [(f"{2:016x}", 2, 1)]
    assert [(process, rank, event) for process, rank, _, event in last] == [("job.rank1.h.8", 1, "communicator.ready")]


@pytest.mark.usefixtures("exported")
def test_the_first_question_of_the_page_in_polars() -> None:
    """It has the same answer."""
    pytest.importorskip("polars")
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, found)
    assert found["registrations"].rows() == [(0, 1, 0.0)]
