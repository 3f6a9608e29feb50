"""Compressed logs, and directories with the logs of several jobs or runs."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, UNUSABLE, Audit, change, log_of, with_begin
from typer.testing import CliRunner

from tracehook.commands import app
from tracehook.log.directory import find_logs

_FAILED = {"how": "exception", "exception": "ValueError", "message": "", "status": 1}


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


OTHER: dict[str, Any] = {"job": "other", "time": "2036-11-21T12:00:00+00:00", "argv": ["/x/b.py"]}  # began last


def test_the_beginning_of_an_id_is_enough(logs: Path) -> None:
    """Where one job alone begins so; of several all are named."""
    _copy_as(logs, 5, job="20261121-b", time="2036-11-21T12:00:00+00:00", argv=["/x/b.py"])
    for rank in (0, 1):
        with_begin(next(logs.glob(f"clean.rank{rank}.*")), job="20261121-a")
    Audit(logs, "--job", "20261121-a").expect(CLEAN, "2 ranks")
    Audit(logs, "--job", "20261121-").expect(UNUSABLE, "2 jobs begin with '20261121-'", "20261121-b (b.py")


def test_two_jobs(logs: Path) -> None:
    """Of two jobs the one that began last is taken, which one line says; `--job` chooses, and a refusal names them."""
    _copy_as(logs, 5, job="[red]other[/]", time="2036-11-21T12:00:00+00:00", argv=["/x/b.py"])
    done = Audit(logs)
    assert (done.status, len(done.err.splitlines())) == (CLEAN, 1), done
    assert "job [red]other[/], 2 ranks" in done.out
    told = "[red]other[/] (b.py, began 2036-11-21T12:00:00 UTC, ranks 0, 1)"
    assert all(word in done.err for word in (told, "left out: clean (clean.py", "--job")), done
    assert "job clean, 2 ranks" in Audit(logs, "--job", "clean").out
    assert "job [red]other[/], 2 ranks" in Audit(logs, "--job", "[red]other[/]").out
    Audit(logs, "--job", "third").expect(UNUSABLE, "'third'", told, "clean (clean.py, began")


def test_a_log_that_lost_the_name_of_its_job(logs: Path) -> None:
    """A log that lost its job, its rank and its communicators is left out: one line says so, and the rank is missed."""
    with_begin(log_of(logs), job=None, rank=None, time=None, argv=None)
    change(log_of(logs), lambda lines: lines[:4])
    Audit(logs).expect(FINDINGS, "1 of 2 ranks left no log: rank 1", "left out: (no id)")


def test_job_without_an_id(logs: Path) -> None:
    """A job that has no id can be chosen too."""
    _copy_as(logs, 5, job=None)
    assert "(no id)" in Audit(logs).err
    assert Audit(logs, "--job", "(no id)").status == CLEAN


def test_the_launcher_is_of_the_job_that_it_started(logs: Path) -> None:
    """It has an id of its own where torchrun was given one; it is no job by itself, and of no other one."""
    _copy_as(logs, 5, job="other", launcher_job="made", time="2036-11-21T12:00:00+00:00")
    (launcher,) = GOLDEN.glob("*.rank-.*.jsonl")
    with_begin(Path(shutil.copy(launcher, logs)), job="made")
    for job, processes in (("other", 3), ("clean", 2)):
        found = json.loads(Audit(logs, "--job", job, "--json").out)
        assert found["looked"]["processes"] == processes
    assert "made" not in Audit(logs).err
    assert "job other, 2 ranks" in Audit(logs).out


def test_workers_that_made_an_id_each_are_one_job(logs: Path) -> None:
    """They share a communicator, so they are of one job, whose id is that of the first one."""
    for rank in (0, 1):
        with_begin(log_of(logs, rank), job=f"20261121-12000{rank}-abcdef", rank=None, world_size=None)
    done = Audit(logs)
    assert done.err == "", done
    assert json.loads(Audit(logs, "--json").out)["looked"]["processes"] == 2


def test_a_rank_that_nobody_heard_of_in_time_is_that_of_the_communicator(logs: Path) -> None:
    """As of a worker of `mp.spawn` whose group lives for a moment; a communicator without all ranks tells nothing."""
    for rank in (0, 1):
        with_begin(log_of(logs, rank), rank=None, world_size=None)

    def known(size: int) -> bytes:
        return json.dumps({"event": "rank.known", "t_ns": 1, "rank": 0, "world_size": size}).encode() + b"\n"

    whole = log_of(logs, 0).read_bytes().splitlines(keepends=True)
    log_of(logs, 0).write_bytes(b"".join([*whole[:-1], known(2), whole[-1]]))
    Audit(logs).expect(CLEAN, "2 ranks")
    assert [log.told_rank for log in find_logs(logs, logs).logs] == [1, 0]
    log_of(logs, 0).write_bytes(b"".join([*whole[:-1], known(3), whole[-1]]))
    assert {log.told_rank for log in find_logs(logs, logs).logs} == {0, None}


def test_the_jobs_of_a_directory(logs: Path) -> None:
    """`tracehook jobs` lists them, the newest last; as JSON too."""
    _copy_as(logs, 5, **OTHER)
    done = CliRunner().invoke(app, ["jobs", str(logs)])
    assert done.exit_code == 0
    assert " ".join(done.stdout.splitlines()[1].split()) == "other 2036-11-21T12:00:00 UTC b.py, ranks 0, 1"
    found = json.loads(CliRunner().invoke(app, ["jobs", str(logs), "--json"]).stdout)
    assert found["version"] == 1
    assert [job["id"] for job in found["jobs"]] == ["clean", "other"]
    told = {"began": "2036-11-21T12:00:00Z", "program": "b.py", "ranks": [0, 1], "processes": 2}
    assert found["jobs"][1] == {"id": "other"} | told
    assert CliRunner().invoke(app, ["jobs", str(logs / "none")]).exit_code == UNUSABLE


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
    """Two runs without an id, one after the other, are two attempts; so is the second run of a chosen id."""
    _later(logs)
    for log in logs.glob("*.jsonl"):
        with_begin(log, job=None)
    assert Audit(logs).expect(CLEAN, "2 ranks").err == (
        "tracehook audit: the last attempt of job (no id), number 1; --job '(no id)#0' chooses the one before\n"
    )
    Audit(logs, "--job", "(no id)#0").expect(CLEAN, "2 ranks")
    for log in logs.glob("*.jsonl"):
        with_begin(log, attempt=0)
    Audit(logs).expect(CLEAN, "2 ranks", "number 1")
    Audit(logs, "--since", "2036-01-01").expect(CLEAN, "2 ranks")
    Audit(logs, "--since", "2099-01-01").expect(UNUSABLE, "2099")


def _fail_first(logs: Path) -> None:
    """Let rank 1 of the job fail, which its launcher then starts again."""
    _later(logs, attempt=1)
    (log,) = logs.glob("clean.rank1.*.jsonl")
    change(log, lambda lines: [*lines[:-1], json.dumps(json.loads(lines[-1]) | _FAILED).encode() + b"\n"])


def test_of_a_job_that_was_started_again_the_last_attempt_is_judged(logs: Path) -> None:
    """One line says so; `--job` chooses an earlier one."""
    _fail_first(logs)
    done = Audit(logs).expect(CLEAN, "2 ranks")
    assert done.err == (
        "tracehook audit: the last attempt of job clean, number 1; --job 'clean#0' chooses the one before\n"
    )
    assert json.loads(Audit(logs, "--json").out)["looked"]["processes"] == 2
    Audit(logs, "--job", "clean#0").expect(FINDINGS, "2 ranks", "ended-by-exception")
    Audit(logs, "--job", "clean#1").expect(CLEAN, "2 ranks")
    Audit(logs, "--job", "clean#7").expect(UNUSABLE, "no attempt 7 of job clean", "there are: 0, 1")


def test_ranks_that_a_smaller_last_attempt_does_not_have_are_of_an_earlier_one(logs: Path) -> None:
    """But not those of another program of the job that nobody started again, as of a server beside a trainer."""
    with_begin(log_of(logs, 0), attempt=1, world_size=1)
    assert json.loads(Audit(logs, "--json").out)["looked"]["ranks"] == 1
    with_begin(log_of(logs, 1), argv=["server.py"])
    assert json.loads(Audit(logs, "--json").out)["looked"]["ranks"] == 2


@pytest.mark.parametrize("since", ["yesterday", "", "2026-13-01"])
def test_bad_time(logs: Path, since: str) -> None:
    """A time that is none is refused before anything is read."""
    done = Audit(logs, "--since", since)
    assert done.status == UNUSABLE, done
    assert "Traceback" not in repr(done)
