"""Random programs of several parallelisms in which one rank does wrong, played without a process: whom blame names.

FAULTY is the number of seeds, FAULTY_FROM the first one.
"""

from __future__ import annotations

import os
from collections import Counter

from rehearsal.jobs.faulty import draw
from support.played import Played

from tracehook.audit import blame

SEEDS = int(os.environ.get("FAULTY", "300"))
FIRST = int(os.environ.get("FAULTY_FROM", "0"))
MOST_INNOCENT = 0.005  # of all
LEAST_NAMED = 0.7


def verdict(seed: int) -> str:
    """Return what the first finding says: the right rank, an innocent one, that it cannot tell, or nothing."""
    program = draw(seed)
    played = Played(program)
    if program.culprit < 0 or not played.stands:
        return "no hang"
    found = sorted(blame.findings(played.job()), key=lambda finding: finding.ns or 0)
    if not found:
        return "nothing"
    if "cannot tell" in found[0].message:
        return "cannot tell" if program.culprit in (found[0].ranks or [program.culprit]) else "cannot tell, without it"
    return "right" if found[0].ranks[0] == program.culprit else f"innocent {found[0].ranks[0]}, {program.told}"


def test_no_innocent_rank_is_named_first() -> None:
    """Where calls cannot tell who is wrong, all who may be are named, or nobody is."""
    said = Counter(verdict(seed) for seed in range(FIRST, FIRST + SEEDS))
    hangs = said.total() - said["no hang"]
    innocent = [told for told in said if told.startswith("innocent")]
    assert len(innocent) <= MOST_INNOCENT * hangs, innocent
    assert said["right"] >= LEAST_NAMED * hangs, said
    assert said["nothing"] <= 0.01 * hangs, said
