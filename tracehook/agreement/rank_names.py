"""Who the ranks of a communicator are in the job: how messages name them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

MOST_RUNS = 8  # of ranks of the job: those of a group may all stand apart, and those in the group do not


class RankNames(NamedTuple):
    """The group of a communicator. Equal on all its ranks, so that all of them raise one text."""

    group: str = ""  # what messages call it
    ranks: tuple[int, ...] = ()  # of the job, by rank in the group; empty: not known, or the same numbers

    def named(self, ranks: Sequence[int]) -> str:
        """Name ranks of the group by those of the job: ``ranks 4, 5 (0, 1 of tp_1)``."""
        if not self.ranks:
            return f"{_rank(ranks)} {runs(ranks)}"
        of_job = [self.ranks[rank] for rank in ranks]
        beside = f" ({runs(ranks)} of {self.group})" if of_job != list(ranks) else ""
        return f"{_rank(ranks)} {runs(of_job, MOST_RUNS)}{beside}"

    def described(self, ranks: int) -> str:
        """Return the group, which has so many ranks, and who they are where the job counts otherwise."""
        who = f"{_rank(self.ranks)} {runs(sorted(self.ranks), MOST_RUNS)}" if self.ranks else f"{ranks} ranks"
        return f"group {self.group}, {who}"


def of_group(name: str, desc: str | None, ranks: int, members: Sequence[int]) -> RankNames:
    """Return the members of a group, by its names and its global ranks as torch has them."""
    differ = len(members) == ranks and list(members) != list(range(ranks))
    return RankNames(desc or name, tuple(members) if differ else ())


NOBODY = RankNames()  # of a communicator that no group stands for


def _rank(ranks: Sequence[int]) -> str:
    return "rank" if len(ranks) == 1 else "ranks"


def runs(ranks: Sequence[int], most: int | None = None) -> str:
    """Return numbers with runs of three and more as ``4-7``; at most so many runs."""
    runs = [[rank for _, rank in run] for _, run in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    shown, more = runs[:most], sum(map(len, runs[most:])) if most else 0
    told = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in shown)
    return ", ".join(told) + (f" and {more} more" if more else "")
