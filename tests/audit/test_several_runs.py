"""Compressed logs, and directories with the logs of several jobs or runs."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, UNUSABLE, Audit, log_of, with_begin


def test_gzip(logs: Path) -> None:
    """A log that was compressed is read; beside its original it is not read twice."""
    log = log_of(logs)
    packed = logs / f"{log.name}.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    Audit(logs).expect(CLEAN, "beside it")
    log.unlink()
    Audit(logs).expect(CLEAN, "2 ranks")


def test_truncated_gzip(logs: Path) -> None:
    """Of a cut archive what is whole is read, and the damage is named."""
    log = log_of(logs)
    whole = gzip.compress(log.read_bytes())
    (logs / f"{log.name}.gz").write_bytes(whole[: len(whole) // 2])
    log.unlink()
    Audit(logs).expect(FINDINGS, "damaged gzip", f"{log.name}.gz", "2 ranks")


def _copy_as(logs: Path, pid: int, **fields: Any) -> None:
    """Put the logs in once more, as those of other processes."""
    for rank in (0, 1):
        copy = logs / f"again.rank{rank}.vm.{pid + rank}.jsonl"
        source = next(logs.glob(f"clean.rank{rank}.*"), None) or log_of(logs, rank)
        shutil.copy(source, copy)
        with_begin(copy, pid=pid + rank, **fields)


def test_two_jobs(logs: Path) -> None:
    """The logs of two jobs are refused with their names; `--job` chooses."""
    _copy_as(logs, 5, job="[red]other[/]")
    Audit(logs).expect(UNUSABLE, "2 jobs", "--job", "[red]other[/]", "clean")
    Audit(logs, "--job", "clean").expect(CLEAN, "job clean")
    Audit(logs, "--job", "[red]other[/]").expect(CLEAN, "job [red]other[/]")
    Audit(logs, "--job", "third").expect(UNUSABLE, "third", "clean")


def test_job_without_a_name(logs: Path) -> None:
    """What a job is called that has no name can be chosen too."""
    _copy_as(logs, 5, job=None)
    Audit(logs).expect(UNUSABLE, "(no name)")
    Audit(logs, "--job", "(no name)").expect(CLEAN)


def _later(logs: Path, **fields: Any) -> None:
    """Put the same job in once more, an hour later."""
    hour = 3_600_000_000_000

    def shifted(line: bytes) -> bytes:
        event = json.loads(line)
        return json.dumps(event | {"t_ns": event["t_ns"] + hour}).encode() + b"\n"

    for rank in (0, 1):
        log = next(logs.glob(f"clean.rank{rank}.*"))
        copy = logs / f"later.rank{rank}.vm.{rank}.jsonl"
        copy.write_bytes(b"".join(shifted(line) for line in log.read_bytes().splitlines()))
        with_begin(copy, pid=5 + rank, time="2036-11-21T12:00:00+00:00", **fields)


def test_two_runs(logs: Path) -> None:
    """Two runs without a job's name, one after the other, are refused; `--since` chooses the later one."""
    for rank in (0, 1):
        with_begin(log_of(logs, rank), job=None)
    _later(logs)
    Audit(logs).expect(UNUSABLE, "several runs", "--since")
    Audit(logs, "--since", "2036-01-01").expect(CLEAN, "2 ranks")
    Audit(logs, "--since", "2099-01-01").expect(UNUSABLE, "2099")


def test_restarted_job(logs: Path) -> None:
    """A job that its launcher started again is one job."""
    _later(logs, attempt=1)
    Audit(logs).expect(CLEAN, "2 ranks")


@pytest.mark.parametrize("since", ["yesterday", "", "2026-13-01"])
def test_bad_time(logs: Path, since: str) -> None:
    """A time that is none is refused before anything is read."""
    done = Audit(logs, "--since", since)
    assert done.status == UNUSABLE, done
    assert "Traceback" not in repr(done)
