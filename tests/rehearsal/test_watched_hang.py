"""A hang as ``tracehook watch`` tells it while it lasts: the line of the program of a rank that waits in no call."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.processes import SCRIPTS, run
from support.rehearsal import run_command, write_job

# Rank 0 waits in NCCL, rank 2 for a file; rank 1 computes, or waits for rank 2 in Gloo.
JOB = """
import os, sys, time
import torch, torch.distributed as dist
from common import RANK, start


def load():
    while not os.path.exists(sys.argv[1]): time.sleep(0.05)


def main():
    tensor = torch.ones(4, device=start(seconds=300, bind=False))
    of_hosts = dist.new_group([1, 2], backend="gloo")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if RANK == 2: load()
    if RANK == 1 and sys.argv[2] == "alone": load()
    if RANK > 0 and sys.argv[2] == "gloo": dist.barrier(of_hosts)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
"""
LOADS = [line.strip() for line in JOB.splitlines()].index("while not os.path.exists(sys.argv[1]): time.sleep(0.05)") + 1
CALLED = [line.strip() for line in JOB.splitlines()].index("if RANK == 2: load()") + 1


def watched(log: Path, *how: str) -> str:
    """Look once."""
    return run([SCRIPTS / "tracehook", "watch", str(log), "--once", *how], timeout=60).out


def _is_told(told: dict[str, Any], text: str, way: str) -> bool:
    """Whether all who were asked have answered, in both looks: on a busy machine that may take another one."""
    places = sum(len(each["places"]) for each in told["waits"])
    is_whole = places == 2 if way == "alone" else len(told["waits"]) == 2 and places and "outside of NCCL" in text
    return bool(is_whole) and "rank 2 was at " in text


@pytest.mark.parametrize("way", ["alone", "gloo"])
def test_a_watched_hang_has_the_lines_of_those_who_wait_in_no_call(tmp_path: Path, way: str) -> None:
    """And a rank that waits in Gloo is not the cause: it waits itself. The job goes on, and ends in order."""
    job, log, go = write_job(tmp_path / "job.py", JOB), tmp_path / "log", tmp_path / "go"
    with ThreadPoolExecutor(1) as beside:
        command = ("launch_and_end.py", "3", "90", "SIGTERM", job, go, way)
        running = beside.submit(run_command, *command, devices=3, limit=0, log=log)
        try:
            told: dict[str, Any] = {"waits": []}
            text, deadline = "", time.monotonic() + 60
            while time.monotonic() < deadline and not _is_told(told, text, way):
                time.sleep(1)
                told = json.loads(watched(log, "--json") or "{}") or told
                text = " ".join(watched(log).split())
        finally:
            go.touch()
        finished = running.result()
    assert "statuses [0, 0, 0]" in finished.out, finished.output
    is_gloo = way == "gloo"
    of_nccl = (["rank 0"], ["rank 1", "rank 2"])
    expected = [(["rank 1"], ["rank 2"]), of_nccl] if is_gloo else [of_nccl]
    assert [(each["waiting"], sorted(each["missing"])) for each in told["waits"]] == expected, told
    at = {place["rank"]: (place["line"], place["function"]) for place in told["waits"][0]["places"]}
    assert at[2] == (LOADS, "load"), told
    assert set(at) == ({2} if is_gloo else {1, 2})
    assert f"rank 2 was at job.py:{LOADS} in load (called at job.py:{CALLED} in main)" in text, text
    assert ("rank 1 waits for rank 2 in barrier, outside of NCCL" in text) == is_gloo, text
