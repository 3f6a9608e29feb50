"""Logs are exported while the job runs and its ranks are killed: nothing twice, nothing lost that the logs had."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

from support.exported import events, in_logs
from support.rehearsal import rehearse

from tracehook.export.parquet import export
from tracehook.log.file_name import told_by
from tracehook.log.lines import LogError

RANKS = 4


def _pids(logs: Path) -> dict[int, int]:
    """Return the process of each rank that has a log."""
    found = {}
    for rank in range(RANKS):
        for file in logs.glob(f"*.rank{rank}.*.jsonl"):
            told = told_by(file.name)
            assert told is not None
            found[rank] = told.pid
    return found


def test_of_killed_ranks_everything_is_exported(tmp_path: Path) -> None:
    """Each at a moment of its own, while the export goes on; what was in rings only is there too."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    job = threading.Thread(
        target=rehearse, args=("bounded.py", "180", "never"), kwargs={"log": logs, "ranks": RANKS, "timeout": 90}
    )
    job.start()
    chance = random.Random(3)
    kills: list[float] = []  # moments, by rank
    exports = 0
    while job.is_alive():
        try:
            has_events = export(logs, out).events > 0
        except LogError:  # there is none yet
            time.sleep(0.05)
            continue
        if kills:
            exports += has_events
        elif has_events and len(_pids(logs)) == RANKS:
            kills = [time.monotonic() + 1 + chance.uniform(0, 3) for _ in range(RANKS)]
        for rank, moment in enumerate(kills):
            # The ranks wait for each other, so those that are left log no more when one is gone.
            if time.monotonic() > moment and exports > 3:
                os.kill(_pids(logs)[rank], signal.SIGKILL)
                kills[rank] = float("inf")
    job.join()
    export(logs, out)
    assert kills == [float("inf")] * RANKS
    found = events(out)
    assert found == in_logs(logs)
    assert len(found) == len(set(found))
    recovered = events(out, "DISTINCT process, recovered")
    assert sum(is_recovered for _, is_recovered in recovered) > 0, "no ring had an event"
    assert export(logs, out).events == 0
