"""Clocks that somebody sets while a job runs, or that the program replaces: no time becomes wrong by it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import JOBS, rehearse, rehearse_until, write_job

from tracehook.log.ring import read_header

HOUR = 3600


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that sets the clock of a process."""
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, JOBS / "clock.c", "-ldl"], check=True)
    return made


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_jumps_on_one_host_is_named_and_changes_no_time(step: int, shim: Path, tmp_path: Path) -> None:
    """The ranks that wait, who is to blame, and since when, are told as ever."""
    log = tmp_path / "log"
    env = {"LD_PRELOAD": str(shim), "TEST_CLOCK": str(tmp_path / "clock")}
    run = rehearse_until(6, "clock_jumps.py", str(step), ranks=2, log=log, env=env, cold=True, timeout=90)
    text, findings = audit(log)
    rows = [row for row in json.loads(findings) if row[0] != "ended-by-others"]
    assert sorted((rule, severity, ranks[0]) for rule, severity, ranks, _ in rows) == [
        ("clock-jumped", "warning", 1),
        ("rank-missing", "error", 1),
    ], run.output + text
    where = "ahead" if step > 0 else "back"
    assert f"the clock of rank 1 jumped {where} by {HOUR} s" in text
    times = [float(each) for each in re.findall(r"(-?\d+\.\d) s until", text.splitlines()[-2])]
    assert times, text
    assert all(1 < each < 60 for each in times), text
    assert "clock" not in run.finished.err
    epochs = {ring.name.split(".")[1]: read_header(ring).epoch_ns for ring in log.glob("*.ring")}
    assert abs((epochs["rank1"] - epochs["rank0"]) / 1e9 - step) < 1, "who looks whether it runs takes the new clock"


def test_a_program_may_replace_the_clocks_of_python(tmp_path: Path) -> None:
    """Tests that freeze the time do. A rank that is late for a moment is late for no longer, and all threads end."""
    text = """
import time
import torch
import torch.distributed as dist
import tracehook
from common import RANK, start

device = start(600, waits=True)
wait, now = time.sleep, [time.monotonic()]

def leap():
    now[0] += 400
    return now[0]

def refuse(*_):
    raise AssertionError("the program's own clock")

for clock, sleep in ((leap, lambda _: None), (refuse, refuse)):
    time.time = time.monotonic = time.time_ns = time.monotonic_ns = clock
    time.sleep = sleep
    wait(RANK)
    with tracehook.symmetric(dist.group.WORLD):
        tensor = torch.ones(1 << 20, device=device)
    dist.all_reduce(tensor)
    assert tensor.sum().item() == 1 << 21
dist.destroy_process_group()
"""
    run = rehearse(write_job(tmp_path / "job.py", text), ranks=2, log=tmp_path / "log", cold=True).assert_good()
    assert run.finished.err.strip() == "", run.output
