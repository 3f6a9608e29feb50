"""Who takes part in a round of an agreement, which ranks share a host, and the keys of the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tracehook.agreement.rank_names import NOBODY, RankNames

LEADER = 0


class Hosts(NamedTuple):
    """Who shares a host, as one rank sees it."""

    speakers: Sequence[int] = ()  # the first rank of each host, ascending; empty if no two ranks share one
    neighbours: Sequence[int] = ()  # the ranks of this rank's host, ascending; empty if it is alone there


class RoundTopology(NamedTuple):
    """Who takes part, in which sequence of rounds."""

    prefix: str
    rank: int
    ranks: int
    about: str  # what messages call the communicator
    timeout: float  # seconds, for messages
    hosts: Hosts = Hosts()
    names: RankNames = NOBODY

    @property
    def who(self) -> str:
        """What messages call this rank."""
        return self.names.named([self.rank])

    @property
    def has_neighbours(self) -> bool:
        """Whether other ranks share this rank's host."""
        return bool(self.hosts.neighbours)

    @property
    def is_speaker(self) -> bool:
        """Whether this rank speaks in the store for its host."""
        return not self.has_neighbours or self.rank == self.hosts.neighbours[0]

    def verdict_key(self, number: int) -> str:
        """Where the verdict of a round stands."""
        return f"{self.prefix}/{number}/verdict"

    def post_key(self, number: int, rank: int) -> str:
        """Where a rank posts; the leader only if it has to wait for the others."""
        return f"{self.prefix}/{number}/{rank}"


def numbered(hosts: Sequence[str]) -> list[int]:
    """Return for each rank the number of its host, in the order in which they appear; empty if some rank named none."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts] if all(hosts) else []


def seen_by(rank: int, numbers: Sequence[int]) -> Hosts:
    """Return who shares a host, if each rank's host has that number."""
    ranks = defaultdict(list)
    for other, number in enumerate(numbers):
        ranks[number].append(other)
    if len(ranks) == len(numbers):
        return Hosts()
    neighbours = ranks[numbers[rank]]
    return Hosts([each[0] for each in ranks.values()], neighbours if len(neighbours) > 1 else ())
