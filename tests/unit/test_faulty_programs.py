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
LEAST_NAMED = 0.85  # of all
LEAST_OF_REMEMBERED = 0.92  # of those of which the log remembers the calls in which the ranks wait
MOST_INNOCENT = 0.0


def verdict(seed: int) -> str:
    """Return what the first finding says: the right rank, an innocent one, that it cannot tell, or nothing."""
    program = draw(seed)
    played = Played(program)
    if program.culprit < 0 or not played.stands:
        return "no hang"
    found = sorted(blame.findings(played.job()), key=lambda finding: finding.ns or 0)
    if not found:
        return "nothing"
    if "cannot tell who waits for whom" in found[0].message:
        return "forgotten"
    if "cannot tell which of them is wrong" in found[0].message:
        return "undecidable" if program.culprit in found[0].ranks else f"cannot tell, without it, {program.told}"
    return "right" if found[0].ranks[0] == program.culprit else f"innocent {found[0].ranks[0]}, {program.told}"


def test_no_innocent_rank_is_named_first() -> None:
    """Where calls cannot tell who is wrong, all who may be are named, or nobody is."""
    said = Counter(verdict(seed) for seed in range(FIRST, FIRST + SEEDS))
    hangs = said.total() - said["no hang"]
    wrong = [told for told in said if told.startswith(("innocent", "cannot tell"))]
    assert len(wrong) <= MOST_INNOCENT * hangs, wrong
    assert said["right"] >= LEAST_NAMED * hangs, said
    assert said["right"] >= LEAST_OF_REMEMBERED * (hangs - said["forgotten"] - said["nothing"]), said
    assert said["nothing"] <= 0.01 * hangs, said
