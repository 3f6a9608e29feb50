"""Random programs of several parallelisms in which one rank does wrong, played without a process: whom blame names.

FAULTY is the number of seeds, FAULTY_FROM the first one.
"""

import os
from collections import Counter

import pytest
from support.faulty import FAULTS, MORE_FAULTS, Program, draw
from support.played import Played
from support.shapes import SHAPES
from support.shapes import draw as drawn

from tracehook.audit import blame

SEEDS = int(os.environ.get("FAULTY", "200"))
FIRST = int(os.environ.get("FAULTY_FROM", "0"))
LEAST_NAMED = {FAULTS: 0.92, MORE_FAULTS: 0.86}  # of all
LEAST_NAMED_OF_SHAPES = 0.65
LEAST_NAMED_OF_LARGER = {FAULTS: 0.975, MORE_FAULTS: 0.9}  # of those of three ranks or more, if the log has all calls


# Who comes to its end a step early looks like one that computes: of two ranks nothing tells which of them is wrong.
LIKE_AN_END = ("step", "again", "more")


def verdict(seed: int, faults: tuple[str, ...], transfers: int) -> str:
    """Return what the first finding says: the right rank, an innocent one, that it cannot tell, or nothing."""
    return said_of(draw(seed, faults=faults), transfers)


def said_of(program: Program, transfers: int) -> str:
    """Return the same of a program."""
    played = Played(program)
    if program.culprit < 0 or not played.stands or (program.ranks == 2 and program.fault in LIKE_AN_END):
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


@pytest.mark.parametrize(
    ("faults", "transfers"), [(FAULTS, 128), (FAULTS, 1000), (MORE_FAULTS, 1000)], ids=["forgets", "all", "more"]
)
def test_no_innocent_rank_is_named_first(faults: tuple[str, ...], transfers: int) -> None:
    """Where calls cannot tell who is wrong, all who may be are named; where the log forgot them, nobody is.

    `transfers`: the number of sends and receives that a log has.
    """
    said = Counter(verdict(seed, faults, transfers) for seed in range(FIRST, FIRST + SEEDS))
    hangs = said.total() - said["no hang"]
    assert not [told for told in said if told.startswith(("innocent", "cannot tell"))], said
    assert said["right"] >= LEAST_NAMED[faults] * hangs, said
    assert said["nothing"] <= 0.01 * hangs, said
    if transfers > 128:
        assert said["forgotten"] + said["nothing"] == 0, said
        assert said["right"] >= LEAST_NAMED_OF_LARGER[faults] * (said["right"] + said["undecidable"]), said


@pytest.mark.parametrize("ends", [False, True], ids=["waits at the end", "ends"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_innocent_rank_of_other_programs_is_named_first(shape: str, ends: bool) -> None:
    """Of these each rank may end in order while one that did wrong still waits for it."""
    programs = (drawn(seed, shape, ends) for seed in range(FIRST, FIRST + SEEDS // 3))
    said = Counter(said_of(program, 1000) for program in programs)
    assert not [told for told in said if told.startswith(("innocent", "cannot tell"))], said
    assert said["right"] >= LEAST_NAMED_OF_SHAPES * (said["right"] + said["undecidable"]), said
    assert said["right"] > SEEDS / 6, said


@pytest.mark.parametrize(("seed", "fault"), [(500540, "fewer"), (702387, "part")])
def test_what_a_rank_called_behind_the_call_in_which_it_waits_accuses_it_of_nothing(seed: int, fault: str) -> None:
    """Its host ran ahead, to the end of a loop that was longer than before."""
    assert verdict(seed, (fault,), 1000) == "undecidable of two"
