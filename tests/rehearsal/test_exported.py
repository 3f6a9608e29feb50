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


def test_of_killed_ranks_everything_is_exported(tmp_path: Path) -> None:
    """Each at a moment of its own, while the export goes on; what was in rings only is there too."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    job = threading.Thread(
        target=rehearse, args=("bounded.py", "90", "never"), kwargs={"log": logs, "ranks": RANKS, "timeout": 60}
    )
    job.start()
    chance = random.Random(3)
    kills = [time.monotonic() + 4 + chance.uniform(0, 3) for _ in range(RANKS)]
    exports = 0
    while job.is_alive():
        try:
            exports += export(logs, out).events > 0
        except LogError:  # there is none yet
            time.sleep(0.05)
        for rank, moment in enumerate(kills):
            if time.monotonic() > moment:
                for file in logs.glob(f"*.rank{rank}.*.jsonl"):
                    told = told_by(file.name)
                    assert told is not None
                    os.kill(told.pid, signal.SIGKILL)
                    kills[rank] = float("inf")
    job.join()
    export(logs, out)
    assert exports > 3
    found = events(out)
    assert found == in_logs(logs)
    assert len(found) == len(set(found))
    recovered = events(out, "DISTINCT process, recovered")
    assert sum(is_recovered for _, is_recovered in recovered) > 0, "no ring had an event"
    assert export(logs, out).events == 0
