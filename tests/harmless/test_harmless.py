"""Random correct programs in random surroundings: tracehook changes nothing, says nothing, leaves nothing.

HARMLESS_SEEDS: how many; HARMLESS_FROM: the first. A seed that failed is played again with
``HARMLESS_FROM=seed HARMLESS_SEEDS=1``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

HERE = Path(__file__).parent
JOBS = HERE.parent / "rehearsal" / "jobs"
SEEDS = int(os.environ.get("HARMLESS_SEEDS", "200"))
FIRST = int(os.environ.get("HARMLESS_FROM", "0"))
ROUND = 25  # seeds of one job
NEW, OLD = "23007", "22809"
START = "import sys, runpy; sys.path[:0] = {paths}; sys.argv[0] = {job!r}; runpy.run_path({job!r}, run_name='__main__')"


def play(folder: Path, ranks: int, first: int, seeds: int, *how: str, log: bool = True) -> Rehearsal:
    """Play seeds one after the other, each in a job of its own."""
    job = folder / "start.py"
    paths = [str(HERE), str(JOBS)]
    job.write_text(START.format(paths=paths, job=str(HERE / "job.py")))
    return rehearse(
        job,
        str(first),
        str(seeds),
        str(folder),
        *how,
        ranks=ranks,
        log=folder / "log" if log else None,
        env={
            "SYMM_REGISTER_LOCAL": "auto",  # not every segment, as in other tests: ordinary memory may differ
            "TRACEHOOK_EMU_NCCL_VERSION": NEW if first % 2 else OLD,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        },
        timeout=60 + 8 * seeds,
    )


def rounds() -> list[tuple[int, int, int]]:
    """Return the jobs: ranks, first seed, seeds."""
    starts = range(FIRST, FIRST + SEEDS, ROUND)
    return [(2 + number % 2, start, min(ROUND, FIRST + SEEDS - start)) for number, start in enumerate(starts)]


@pytest.mark.timeout(90 + 10 * ROUND)
@pytest.mark.parametrize(("ranks", "first", "seeds"), rounds())
def test_a_correct_program_is_not_hurt(tmp_path: Path, ranks: int, first: int, seeds: int) -> None:
    """Every sum is right, nothing is raised or said, no communicator is ended, no window or segment is left."""
    run = play(tmp_path, ranks, first, seeds)
    told = [run.facts(rank) for rank in range(ranks)]
    assert [facts.get("failures") for facts in told] == [{}] * ranks, run.output
    run.assert_good()
    said = [
        line
        for line in run.finished.err.splitlines()
        if line.startswith("tracehook") and " differs: " not in line and " yet; " not in line
    ]
    assert said == [], run.output
    assert run.events("communicator.refused") == run.events("placement.mismatch") == []
    assert run.events("agreement.timeout") == run.events("agreement.mismatch") == run.events("agreement.failed") == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_planted_difference_is_named(tmp_path: Path, ranks: int) -> None:
    """One rank allocates another size in one scope: all ranks of that scope raise one sentence that names it."""
    for seed in range(FIRST, FIRST + 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run = play(folder, ranks, seed, 1, "planted")
        told = [run.facts(rank) for rank in range(ranks)]
        wrong = [text for facts in told for found in facts.get("failures", {}).values() for text in found]
        announced = [text for facts in told for text in facts.get("announced", {}).values()]
        if any("not" in text and "step" in text for text in wrong):
            assert announced, f"a wrong sum without a word: {wrong} {run.output}"
        assert run.finished.orphans == 0
