"""Random correct programs in random surroundings: tracehook changes nothing, says nothing, leaves nothing.

HARMLESS_SEEDS: how many; HARMLESS_FROM: the first; HARMLESS_MEMORY=vmm: where segments come from in all of them. A
seed that failed is played again with
``HARMLESS_FROM=seed HARMLESS_SEEDS=1``. HARMLESS_PLANTED: divergences of each kind.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import divergences
import launch_settings
import programs
import pytest
import torch
from divergences import ALIKE, KINDS, NOTICED
from launch_settings import OF_TORCH, ROUND
from support.audits import CLEAN, Audit
from support.rehearsal import ON_DEVICES, Rehearsal, rehearse, start_of

HERE = Path(__file__).parent
SEEDS = int(os.environ.get("HARMLESS_SEEDS", "200"))
FIRST = int(os.environ.get("HARMLESS_FROM", "0"))
PLANTED = int(os.environ.get("HARMLESS_PLANTED", "1"))
DEVICES = torch.cuda.device_count() if ON_DEVICES else 3
WRONG = "], not ["  # in what a rank says of results
OF_SURROUNDINGS = (" differs: ", " so nothing is compared", " yet; ")  # guards that differ, and short patience
ON_HOSTS = """
import os
if hosts := os.environ.get("HARMLESS_HOSTS"):  # each with a block of the ranks
    os.environ["NCCL_HOSTID"] = str(int(os.environ["RANK"]) * int(hosts) // int(os.environ["WORLD_SIZE"]))
"""


def play(folder: Path, ranks: int, first: int, seeds: int, *how: str, **env: str) -> Rehearsal:
    """Play seeds one after the other, each in groups of its own."""
    job = start_of(folder, HERE / "job.py", first=ON_HOSTS)
    given = str(first), str(seeds), str(folder), *how
    return rehearse(job, *given, ranks=ranks, log=folder / "log", env=env, timeout=100 + 8 * seeds)


def rounds() -> list[tuple[int, int]]:
    """Return the jobs: first seed, seeds."""
    starts = [FIRST, *range((FIRST // ROUND + 1) * ROUND, FIRST + SEEDS, ROUND)]
    return [(start, min(ROUND - start % ROUND, FIRST + SEEDS - start)) for start in starts]


@pytest.mark.timeout(90 + 10 * ROUND)
@pytest.mark.parametrize(("first", "seeds"), rounds())
def test_a_correct_program_is_not_hurt(tmp_path: Path, first: int, seeds: int) -> None:
    """Every result is right, nothing is raised or said, no communicator is ended, no window or segment is left."""
    launch = launch_settings.draw(first)
    ranks = min(launch.ranks, DEVICES)
    run = play(tmp_path, ranks, first, seeds, **launch.env)
    told = [run.facts(rank) for rank in range(ranks)]
    assert [facts.get("failures") for facts in told] == [{}] * ranks, run.output
    run.assert_good()
    said = [
        line
        for line in run.finished.err.splitlines()
        if line.startswith("tracehook") and not any(word in line for word in OF_SURROUNDINGS)
    ]
    assert said == [], run.output
    assert run.events("communicator.refused") == run.events("placement.mismatch") == []
    assert run.events("agreement.timeout") == run.events("agreement.mismatch") == run.events("agreement.failed") == []
    Audit(tmp_path / "log").expect(CLEAN)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", range(2, DEVICES + 1))
def test_ranks_that_are_threads_are_not_hurt(tmp_path: Path, ranks: int) -> None:
    """The same of ranks in one process, which compare in a HashStore."""
    job = start_of(tmp_path, HERE / "threaded_job.py")
    given = str(FIRST), str(max(1, SEEDS // 8)), str(ranks)
    env = OF_TORCH | {"SYMM_REGISTER_LOCAL": "auto"}
    run = rehearse(job, *given, devices=ranks, log=tmp_path / "log", env=env, timeout=60 + SEEDS)
    assert run.facts().get("failures") == {}, run.output
    run.assert_good()
    said = [line for line in run.finished.err.splitlines() if line.startswith("tracehook") and " yet; " not in line]
    assert said == [], run.output
    Audit(tmp_path / "log").expect(CLEAN)


def seeds_of(kind: str) -> list[tuple[int, int]]:
    """Return the first seeds of that kind whose programs have a place for it, for two ranks and for three in turn."""
    place = list(KINDS).index(kind)
    found: list[tuple[int, int]] = []
    for seed in itertools.count(FIRST + (place - FIRST) % len(KINDS), len(KINDS)):
        if len(found) == PLANTED:
            return found
        ranks = min(DEVICES, 2 + (place + len(found)) % 2)
        if divergences.draw(seed, programs.draw(seed, ranks)):
            found.append((seed, ranks))
    raise AssertionError


def not_told_to_all(told: Iterable[str]) -> list[str]:
    """Return the mismatches that some ranks of a group raised and others did not: those who compare come to one end."""
    found = Counter(
        text[text.find("communicator ") :].partition("; no")[0]  # what follows is the same, or is about this rank
        for text in told
        if ALIKE in text
    )
    about = re.compile(r"\(group \S+, (?:(\d+) ranks|ranks ([\d, ]+))\)")
    groups = {text: about.search(text) for text in found}
    sizes = {text: group and int(group[1] or len(group[2].split(","))) for text, group in groups.items()}
    return [text for text, size in sizes.items() if not size or found[text] % size]


@pytest.mark.timeout(130 * PLANTED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_difference_is_named(tmp_path: Path, kind: str) -> None:
    """One rank does something else: all who compare say so, no wrong result is without a word, every process ends."""
    for seed, ranks in seeds_of(kind):
        folder = tmp_path / str(seed)
        folder.mkdir()
        env = OF_TORCH | {"SYMM_REGISTER_LOCAL": "auto"}
        run = play(folder, ranks, seed, 1, "planted", **env)
        told = [run.facts(rank) for rank in range(ranks)]
        said = run.finished.err + " ".join(text for facts in told for text in facts.get("announced", {}).values())
        about = f"seed {seed} on {ranks} ranks: {run.output}"
        assert not run.finished.late, about
        assert run.finished.orphans == 0, about
        is_well = [facts.get("failures") for facts in told] == [{}] * ranks
        assert not_told_to_all(text for facts in told for text in facts.get("announced", {}).values()) == [], about
        wrong = any(WRONG in text for facts in told for seen in facts.get("failures", {}).values() for text in seen)
        assert not wrong or kind == "known" or "abort" in said, about  # what is new is compared before
        assert re.search(KINDS[kind], said) or (is_well and kind not in NOTICED), about
