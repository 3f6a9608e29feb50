"""The faults of nvidia-resiliency-ext, unchanged from its wheel, on one rank of eight: ``make integrations``.

FAULTS_SEED chooses the ranks.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from audit.goldens import audit
from support.processes import SCRIPTS, environment
from support.rehearsal import ROOT, rehearse

FETCHED = ROOT / "build" / "servers"
INJECT_FAULT = FETCHED / "nvidia_resiliency_ext" / "shared_utils" / "inject_fault.py"
JOB = Path(__file__).with_name("fault_job.py")
SEED = os.environ.get("FAULTS_SEED", "0")
RANKS = 8
ENDS = {  # what the fault ends at once: the rules that may come first
    "GPU_ERROR": ("rank-failed", "ended-by-exception"),
    "WORKLOAD_EXC": ("ended-by-exception",),
    "ASYNC_EXC": ("ended-by-exception",),
    "SIGNAL_EXC": ("ended-by-exception",),
    "OS_ABORT": ("rank-failed",),
    "SEGFAULT": ("rank-failed",),
    "SIGINT": ("interrupted",),
    "SIGKILL": ("rank-failed",),
    "SIGTERM": ("ended-by-others",),
}
HANGS = {  # what the last line of the audit says
    "GPU_SLEEP": "but its device has not come to it",
    "LOCK_GIL": "no thread of Python ran, because code in C kept the GIL",
    "SIGSTOP": "a stop (SIGSTOP): the others lived",
}
TOLD = {"GPU_SLEEP": "to which the device of", "LOCK_GIL": "is silent (stopped", "SIGSTOP": "is silent (stopped"}
SECONDS = 15  # for which ranks hang
SOON = 10.0  # seconds

pytestmark = pytest.mark.skipif(not INJECT_FAULT.exists(), reason="the faults are not here: make integrations")


@dataclass
class Watched:
    """The lines of ``tracehook watch`` about ranks that wait, each with the time when it came."""

    log: Path
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __enter__(self) -> Watched:
        self._process = subprocess.Popen(
            [SCRIPTS / "tracehook", "watch", self.log], stdout=subprocess.PIPE, text=True, env=environment()
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if re.search(r" waits? for ", line):
                self.lines.append((time.time(), line))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Played:
    """What came of a fault: when it began, and what the audit says."""

    rank: int
    began: float
    rule: str
    ranks: list[int]
    last: str


def play(fault: str, log: Path) -> Played:
    """Train until the fault ends a rank, or some seconds after it has begun."""
    chosen = random.Random(f"{fault} {SEED}")
    rank = chosen.randrange(RANKS)
    run = rehearse(
        *("launch_and_end.py", str(RANKS), str(SECONDS), "SIGTERM"),
        *(str(JOB), fault, str(rank), str(chosen.randrange(10, 20))),
        devices=RANKS,
        log=log,
        env={"FETCHED": str(FETCHED)},
        timeout=120,
    )
    began = re.search(r"fault began ([\d.]+)", run.output)
    assert began is not None, run.output
    text, findings = audit(log)
    rule, _, ranks, _ = next((each for each in json.loads(findings) if each[1] == "error"), json.loads(findings)[0])
    return Played(rank, float(began[1]), rule, ranks, text.splitlines()[-2])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", ENDS)
def test_a_rank_that_a_fault_ends_is_named(fault: str, tmp_path: Path) -> None:
    """By the last line of the audit, and as the first rank."""
    played = play(fault, tmp_path)
    assert (played.rule in ENDS[fault], played.ranks[0]) == (True, played.rank), played
    assert f"rank {played.rank} " in played.last, played


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", HANGS)
def test_a_rank_that_hangs_is_named_in_time(fault: str, tmp_path: Path) -> None:
    """By the watch, before any other rank; and later by the audit, which says how it hung."""
    with Watched(tmp_path) as watched:
        played = play(fault, tmp_path)
    at, first = watched.lines[0]
    assert re.search(rf" waits? for rank {played.rank} in ", first), (played, watched.lines)
    assert TOLD[fault] in first, (played, watched.lines)
    assert at - played.began < SOON, (played, watched.lines)
    assert played.ranks[0] == played.rank, played
    assert HANGS[fault] in played.last, played
