"""A fault in one rank of eight: the last line of the audit names that rank, its call and its group.

PLANTED is the number of seeds, PLANTED_FROM the first one.
"""

import json
import os
import random
from pathlib import Path

import pytest
from audit.goldens import audit
from support.rehearsal import rehearse_until

SEEDS = int(os.environ.get("PLANTED", "3"))
FIRST = int(os.environ.get("PLANTED_FROM", "0"))
RANKS = 8
FAULTS = {  # the rules that may come first
    "exception": ("ended-by-exception",),
    "os_exit": ("exit-status",),
    "segfault": ("rank-failed",),
    "killed": ("rank-failed",),
    "out_of_memory": ("ended-by-exception",),
    "compute": ("rank-missing",),
    "skip": ("rank-missing",),
    "order": ("rank-missing",),
    "operation": ("calls-differ",),
    "count": ("calls-differ",),
    "receive": ("rank-missing",),
    "scope": ("agreement-timeout",),
    "swap": ("placement-refused",),
}
STEPS = range(2, 5)
# These end a rank, and that ends the others; what comes after them is only for a job in which nothing happens.
ENDS = ("exception", "os_exit", "segfault", "killed", "out_of_memory")


def planted(seed: int) -> tuple[str, int, int]:
    """Return what is planted: the fault, the rank, the step."""
    chosen = random.Random(seed)
    fault = list(FAULTS)[seed % len(FAULTS)]
    # Only the second stage receives.
    rank = chosen.randrange(RANKS // 2 if fault == "receive" else 0, RANKS)
    return fault, rank, chosen.choice(STEPS)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_the_rank_that_is_to_blame_is_named(seed: int, tmp_path: Path) -> None:
    """Whatever it did: an end of its own, no call any more, another call, calls in another order."""
    fault, rank, step = planted(seed)
    log, seconds = tmp_path / "logs", 60 if fault in ENDS else 10
    run = rehearse_until(seconds, "planted.py", fault, str(rank), str(step), ranks=RANKS, log=log, timeout=120)
    text, findings = audit(log)
    rule, severity, ranks, _ = json.loads(findings)[0]
    assert rule in FAULTS[fault], (fault, rank, step, text, run.output)
    assert severity == "error"
    assert ranks[0] == rank, (fault, rank, step, text)
    last = text.splitlines()[-2]
    assert f"rank {rank}" in last, last
