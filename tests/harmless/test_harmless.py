"""Random correct programs in random surroundings: tracehook changes nothing, says nothing, leaves nothing.

HARMLESS_SEEDS: how many; HARMLESS_FROM: the first. A seed that failed is played again with
``HARMLESS_FROM=seed HARMLESS_SEEDS=1``.
"""

from __future__ import annotations

import os
from pathlib import Path

import launch_settings
import pytest
from launch_settings import ROUND
from support.audits import CLEAN, Audit
from support.rehearsal import Rehearsal, rehearse

HERE = Path(__file__).parent
JOBS = HERE.parent / "rehearsal" / "jobs"
SEEDS = int(os.environ.get("HARMLESS_SEEDS", "200"))
FIRST = int(os.environ.get("HARMLESS_FROM", "0"))
START = "import sys, runpy; sys.path[:0] = {paths}; sys.argv[0] = {job!r}; runpy.run_path({job!r}, run_name='__main__')"


def play(folder: Path, ranks: int, first: int, seeds: int, *how: str, **env: str) -> Rehearsal:
    """Play seeds one after the other, each in groups of its own."""
    job = folder / "start.py"
    paths = [str(HERE), str(JOBS)]
    job.write_text(START.format(paths=paths, job=str(HERE / "job.py")))
    given = str(first), str(seeds), str(folder), *how
    return rehearse(job, *given, ranks=ranks, log=folder / "log", env=env, timeout=60 + 8 * seeds)


def rounds() -> list[tuple[int, int]]:
    """Return the jobs: first seed, seeds."""
    starts = [FIRST, *range((FIRST // ROUND + 1) * ROUND, FIRST + SEEDS, ROUND)]
    return [(start, min(ROUND - start % ROUND, FIRST + SEEDS - start)) for start in starts]


@pytest.mark.timeout(90 + 10 * ROUND)
@pytest.mark.parametrize(("first", "seeds"), rounds())
def test_a_correct_program_is_not_hurt(tmp_path: Path, first: int, seeds: int) -> None:
    """Every result is right, nothing is raised or said, no communicator is ended, no window or segment is left."""
    launch = launch_settings.draw(first)
    run = play(tmp_path, launch.ranks, first, seeds, **launch.env)
    told = [run.facts(rank) for rank in range(launch.ranks)]
    assert [facts.get("failures") for facts in told] == [{}] * launch.ranks, run.output
    run.assert_good()
    said = [
        line
        for line in run.finished.err.splitlines()
        if line.startswith("tracehook") and " differs: " not in line and " yet; " not in line
    ]
    assert said == [], run.output
    assert run.events("communicator.refused") == run.events("placement.mismatch") == []
    assert run.events("agreement.timeout") == run.events("agreement.mismatch") == run.events("agreement.failed") == []
    Audit(tmp_path / "log").expect(CLEAN)
