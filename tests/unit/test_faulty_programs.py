"""Random programs of several parallelisms in which one rank does wrong, played without a process: whom blame names.

FAULTY is the number of seeds, FAULTY_FROM the first one.
"""

import os
from collections import Counter

import pytest
from support.faulty import draw
from support.played import Played

from tracehook.audit import blame

SEEDS = int(os.environ.get("FAULTY", "300"))
FIRST = int(os.environ.get("FAULTY_FROM", "0"))
LEAST_NAMED = {128: 0.92, 1000: 0.92}  # of all, by the number of sends and receives that a log has
LEAST_NAMED_OF_LARGER = 0.975  # of those of three ranks or more, if the log has all calls


def verdict(seed: int, transfers: int) -> str:
    """Return what the first finding says: the right rank, an innocent one, that it cannot tell, or nothing."""
    program = draw(seed)
    played = Played(program)
    if program.culprit < 0 or not played.stands:
        return "no hang"
    found = sorted(blame.findings(played.job(transfers)), key=lambda finding: finding.ns or 0)
    if not found:
        return "nothing"
    if "cannot tell who waits for whom" in found[0].message:
        return "forgotten"
    if "cannot tell which of them is wrong" in found[0].message:
        if program.culprit not in found[0].ranks:
            return f"cannot tell, without it, {program.told}"
        return "undecidable of two" if program.ranks == 2 else "undecidable"
    return "right" if found[0].ranks[0] == program.culprit else f"innocent {found[0].ranks[0]}, {program.told}"


@pytest.mark.parametrize("transfers", LEAST_NAMED)
def test_no_innocent_rank_is_named_first(transfers: int) -> None:
    """Where calls cannot tell who is wrong, all who may be are named; where the log forgot them, nobody is."""
    said = Counter(verdict(seed, transfers) for seed in range(FIRST, FIRST + SEEDS))
    hangs = said.total() - said["no hang"]
    assert not [told for told in said if told.startswith(("innocent", "cannot tell"))], said
    assert said["right"] >= LEAST_NAMED[transfers] * hangs, said
    assert said["nothing"] <= 0.01 * hangs, said
    if transfers > 128:
        assert said["forgotten"] + said["nothing"] == 0, said
        assert said["right"] >= LEAST_NAMED_OF_LARGER * (said["right"] + said["undecidable"]), said
