"""Who the ranks of a communicator are in the job: how messages name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracehook.log.text import plural, ranges_of, ranks_in_words, told_ranges


class RankNames(NamedTuple):
    """The group of a communicator. Equal on all its ranks, so that all of them raise one text."""

    group: str = ""  # what messages call it
    ranks: tuple[int, ...] = ()  # of the job, by rank in the group; empty: not known, or the same numbers

    def named(self, ranks: Sequence[int]) -> str:
        """Name ranks of the group by those of the job: ``ranks 4, 5 (0, 1 of tp_1)``."""
        if not self.ranks:
            return f"{plural(len(ranks), 'rank')} {_all(ranks)}"
        of_job = [self.ranks[rank] for rank in ranks]
        beside = f" ({_all(ranks)} of {self.group})" if of_job != list(ranks) else ""
        # Ranks of the job may all stand apart, where those in the group do not.
        return f"{plural(len(ranks), 'rank')} {told_ranges(ranges_of(of_job))}{beside}"

    def described(self, ranks: int) -> str:
        """Return the group, which has so many ranks, and who they are where the job counts otherwise."""
        who = ranks_in_words(self.ranks) if self.ranks else f"{ranks} ranks"
        return f"group {self.group}, {who}"


def of_group(name: str, desc: str | None, ranks: int, members: Sequence[int]) -> RankNames:
    """Return the members of a group, by its names and its global ranks as torch has them."""
    differ = len(members) == ranks and list(members) != list(range(ranks))
    return RankNames(desc or name, tuple(members) if differ else ())


NOBODY = RankNames()  # of a communicator that no group stands for


def _all(ranks: Sequence[int]) -> str:
    return told_ranges(ranges_of(ranks), None)
