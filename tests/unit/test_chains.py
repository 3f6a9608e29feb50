"""Chains of those who wait: their ends, and who of a circle can be the only one that is wrong."""

import random
from collections.abc import Collection, Mapping

from tracehook.audit.chains import breaking, ends, go_on

Waits = dict[int, list[list[int]]]


def come(left: Mapping[int, list[list[int]]], released: Collection[int]) -> set[int]:
    """Return all who get there, found by trying again and again: those for whom nobody is missing any more."""
    there = {each for each in released if each not in left}
    while True:
        more = {each for each, its in left.items() if all(set(missing) <= there for missing in its)} - there
        if not more:
            return there
        there |= more


def drawn(seed: int) -> Waits:
    """Draw up to eight processes, some of which wait in one call or in two."""
    chosen = random.Random(seed)
    many = chosen.randint(2, 8)
    return {
        each: [
            chosen.sample([other for other in range(many) if other != each], chosen.randint(0, min(3, many - 1)))
            for _ in range(chosen.choice((1, 1, 2)))
        ]
        for each in range(many)
        if chosen.random() < 0.8
    }


def test_nobody_waits_for_ever_if_all_get_there() -> None:
    """Also where some who wait for each other wait for others besides."""
    for seed in range(1000):
        left = drawn(seed)
        awaited = {each for its in left.values() for missing in its for each in missing}
        released = set(random.Random(-seed - 1).sample(sorted(awaited), len(awaited) // 2)) | set(left)
        assert go_on(left, released) == (come(left, released) >= set(left) | awaited), seed


def test_a_rank_in_the_midst_of_a_circle_breaks_none() -> None:
    """Rank 4 left out a receive: rank 0 still sends, the ranks 1 to 3 wait for rank 0, and rank 4 for all of these."""
    waiting: Waits = {0: [[4]], 1: [[0]], 2: [[0]], 3: [[1]], **{rank: [[0, 1, 2, 3]] for rank in range(4, 8)}}
    assert ends(waiting) == [[0, 1, 2, 3, 4]]
    assert breaking([0, 1, 2, 3, 4], waiting) == [0, 4]


def test_the_end_of_a_chain_waits_for_nobody_or_in_a_circle() -> None:
    """Rank 0 waits for rank 1, which computes; the ranks 2 and 3 wait for each other, and rank 4 for rank 3."""
    assert ends({0: [[1]], 2: [[3]], 3: [[2]], 4: [[3]]}) == [[1], [2, 3]]
    assert ends({0: [[]]}) == []
