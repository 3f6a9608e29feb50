"""Ranks that hang: rehearsals, the audit and `tracehook stacks` name the line of the program where each rank is.

The command is that of docs/failure-modes.md.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
from support.audits import Audit
from support.processes import SCRIPTS, Finished, run
from support.rehearsal import read_logs, run_command, write_job

from tracehook.audit.stacks import program_line
from tracehook.log.file_name import stacks_of

HANGS = 87
# Rank 1 sleeps, rank 2 holds the GIL in code of C, and rank 0 waits for both. Or all wait for a file. Or nobody waits.
JOB = """
import ctypes, os, signal, sys, time
import torch, torch.distributed as dist
from common import RANK, start


def step(how):
    if how == "hang" and RANK == 1:
        time.sleep(60)
    if how == "hang" and RANK == 2:
        ctypes.PyDLL(None).sleep(60)
    while how == "wait" and not os.path.exists(sys.argv[2]): time.sleep(0.05)


def main():
    signal.signal(signal.SIGUSR2, lambda *_: print("SIGUSR2 came", flush=True))
    tensor = torch.ones(4, device=start())
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    time.sleep(1)
    open(f"{os.path.dirname(os.environ['TEST_STORE'])}/started {RANK}", "w").close()
    step(sys.argv[1])
    if sys.argv[1] == "skip" and RANK != 1: dist.all_reduce(tensor[:2]); torch.cuda.synchronize()
    dist.all_reduce(tensor)  # again
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
"""
SKIPPED = 'if sys.argv[1] == "skip" and RANK != 1: dist.all_reduce(tensor[:2]); torch.cuda.synchronize()'


def rehearsed(folder: Path, how: str, ranks: int, limit: float, *end: str, cold: bool = False) -> Finished:
    """Run the job as the command does; its logs are in folder `log`. `end`: after how many seconds, by which signal."""
    job = write_job(folder / "job.py", JOB)
    launched: list[str | Path] = ["launch_and_end.py", str(ranks), *(end or ("60", "SIGTERM")), job, how, folder / "go"]
    return run_command(*launched, devices=ranks, limit=limit, log=folder / "log", cold=cold)


def line_of(code: str) -> int:
    """Return the number of the line of the job that has this code."""
    return [line.strip() for line in JOB.splitlines()].index(code) + 1


def audited(log: Path) -> dict[str, Any]:
    """Return what the audit says."""
    return dict(json.loads(Audit(log, "--json").out))


def test_a_hang_is_told_with_the_lines_of_the_program(tmp_path: Path) -> None:
    """By the rehearsal itself and by the audit, in words and in JSON; also of the rank that holds the GIL."""
    finished = rehearsed(tmp_path, "hang", 3, 3)
    assert finished.status == HANGS, finished.output
    assert "SIGUSR2 came" not in finished.output
    sleeps = f"rank 1 is at job.py:{line_of('time.sleep(60)')} in step"
    holds = f"rank 2 is at job.py:{line_of('ctypes.PyDLL(None).sleep(60)')} in step"
    called = f" (called at job.py:{line_of('step(sys.argv[1])')} in main)"
    assert f"rehearsal: {sleeps}{called}\nrehearsal: {holds}{called}\n" in finished.err, finished.output
    found = audited(tmp_path / "log")["findings"]
    hung = next(each for each in found if each["rule"] == "ranks-hung")
    told = f"; {sleeps}{called}; {holds}{called}; rank 0 is at job.py:"
    assert told in hung["message"]
    assert hung["places"][0] == {
        "rank": 1,
        "file": str(tmp_path / "job.py"),
        "line": line_of("time.sleep(60)"),
        "function": "step",
        "waits_for": None,
        "caller": called.removeprefix(" (called at ").removesuffix(")"),
    }
    (missing,) = [each["message"] for each in found if each["rule"] == "rank-missing"]
    assert told in missing


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_call_different_things_are_told_with_the_lines_of_their_calls(tmp_path: Path, ranks: int) -> None:
    """Rank 1 skips a call. The last line of the audit has the lines, and of two ranks it accuses none."""
    rehearsed(tmp_path, "skip", ranks, 0)
    said = audited(tmp_path / "log")
    first = said["first_finding"]
    assert first["rule"] == "calls-differ", said
    assert first["ranks"][0] == (1 if ranks == 3 else 0), said
    assert ("their calls cannot tell which of them is wrong" in said["sentence"]) == (ranks == 2)
    skipped = [f"job.py:{line_of('dist.all_reduce(tensor)  # again') + more} in main" for more in (0, 1)]
    assert any(line in said["sentence"] for line in skipped), said
    assert f"job.py:{line_of(SKIPPED)} in main" in said["sentence"], said


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGABRT", "SIGSEGV"])
def test_a_signal_that_ends_a_rank_leaves_stacks_and_ends_it_soon(tmp_path: Path, signal: str) -> None:
    """As a launcher ends a rank, torch's watchdog one whose collective hangs, or a fault. It dies of that signal.

    Nobody asked before: ranks ask themselves, also in code of C that holds the GIL. The audit quotes the lines.
    """
    rehearsed(tmp_path, "hang", 3, 0, "3", signal, cold=signal == "SIGSEGV")  # it would end what stands for a rank
    logs = {log.rank: log for log in read_logs(tmp_path / "log")}
    assert [logs[rank].signal for rank in range(3)] == [int(Signals[signal])] * 3
    places = [program_line(stacks_of(logs[rank].path)) for rank in range(3)]
    lines = [None if place is None else place.line for place in places]
    assert lines[1:] == [line_of("time.sleep(60)"), line_of("ctypes.PyDLL(None).sleep(60)")]
    assert lines[0] is not None
    if signal == "SIGTERM":
        found = audited(tmp_path / "log")["findings"]
        (missing,) = [each["message"] for each in found if each["rule"] == "rank-missing"]
        assert all(f"rank {rank} is at job.py:{lines[rank]} in step" in missing for rank in (1, 2)), found


def test_a_clean_job_leaves_no_stacks(tmp_path: Path) -> None:
    """There is one file a rank, without a word of the rehearsal itself."""
    finished = rehearsed(tmp_path, "clean", 2, 20)
    assert finished.status == 0, finished.output
    files = sorted((tmp_path / "log").iterdir())
    assert [file.suffix for file in files] == [".jsonl"] * len(files)
    assert [file.name.split(".")[1] for file in files if ".rank" in file.name] == ["rank0", "rank1"]
    assert not any(b"rehearsal." in file.read_bytes() for file in files)


def asked(log: Path) -> Finished:
    """Ask where the ranks are."""
    return run([SCRIPTS / "tracehook", "stacks", str(log)], timeout=60)


def test_the_command_says_where_the_ranks_of_a_running_job_are(tmp_path: Path) -> None:
    """One line a rank, as often as it is asked; the job goes on, and of one that has ended it says so."""
    log = tmp_path / "log"
    with ThreadPoolExecutor(1) as beside:
        job = beside.submit(rehearsed, tmp_path, "wait", 2, 0)
        try:
            deadline = time.monotonic() + 60
            while (told := asked(log)).out.count(" in step\n") < 2 and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            (tmp_path / "go").touch()
        assert job.result().status == 0, job.result().output
    assert told.status == 0, told.output
    waits = line_of('while how == "wait" and not os.path.exists(sys.argv[2]): time.sleep(0.05)')
    place = f"{tmp_path / 'job.py'}:{waits} in step"
    lines = [line.partition(": ") for line in told.out.splitlines()]
    assert [(name.partition(",")[0], where) for name, _, where in lines] == [("rank 0", place), ("rank 1", place)]
    assert len(list(log.glob("*.stacks"))) == 2
    ended = asked(log)
    assert (ended.status, ended.out) == (1, ""), ended.output
    assert ended.err == f"tracehook stacks: {log}: no process of this job runs on this host\n"
