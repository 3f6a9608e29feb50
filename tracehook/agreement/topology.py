"""Who takes part in a round of an agreement, and the keys of the store."""

from __future__ import annotations

from typing import NamedTuple

from tracehook.agreement.rank_names import NOBODY, RankNames

LEADER = 0  # removes what a round leaves in the store, and compares what ranks say in the background


class RoundTopology(NamedTuple):
    """Who takes part, in which sequence of rounds."""

    prefix: str
    rank: int
    ranks: int
    about: str  # what messages call the communicator
    timeout: float  # seconds, for messages
    names: RankNames = NOBODY

    @property
    def who(self) -> str:
        """What messages call this rank."""
        return self.names.named([self.rank])

    @property
    def others(self) -> list[int]:
        """The ranks besides this one."""
        return [rank for rank in range(self.ranks) if rank != self.rank]

    def verdict_key(self, number: int) -> str:
        """Where the verdict of a round stands."""
        return f"{self.prefix}/{number}/verdict"

    def count_key(self, number: int) -> str:
        """Where the ranks that have come to a round are counted."""
        return f"{self.prefix}/{number}/came"

    def post_key(self, number: int, rank: int) -> str:
        """Where a rank posts."""
        return f"{self.prefix}/{number}/{rank}"
