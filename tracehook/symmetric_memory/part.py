"""Who takes part in a round of an agreement, and under which keys of the store."""

from __future__ import annotations

from typing import NamedTuple

from tracehook.symmetric_memory.hosts import Board, Hosts
from tracehook.symmetric_memory.levels import Levels, flat
from tracehook.symmetric_memory.members import NOBODY, Members

LEADER = 0


def copy_key(verdict_key: str, collector: int) -> str:
    """Where the ranks of a shard that is not the leader's find what stands under the other key."""
    return f"{verdict_key}/{collector}"


class Part(NamedTuple):
    """Who takes part, in which sequence of rounds."""

    prefix: str
    rank: int
    ranks: int
    about: str  # what messages call the communicator
    timeout: float  # seconds, for messages
    hosts: Hosts = Hosts()
    members: Members = NOBODY
    levels: Levels | None = None  # None: all deal with the leader

    @property
    def shard(self) -> Levels:
        """How the speakers are cut into shards."""
        return self.levels or flat(self.ranks, self.hosts.speakers)

    @property
    def who(self) -> str:
        """What messages call this rank."""
        return self.members.named([self.rank])

    @property
    def has_neighbours(self) -> bool:
        """Whether other ranks share this rank's host."""
        return bool(self.hosts.neighbours)

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks share this rank's host, so that its board decides."""
        return len(self.hosts.neighbours) == self.ranks

    @property
    def is_speaker(self) -> bool:
        """Whether this rank speaks in the store for its host."""
        return not self.has_neighbours or self.rank == self.hosts.neighbours[0]

    def verdict_key(self, number: int) -> str:
        """Where the verdict of a round stands."""
        return f"{self.prefix}/{number}/verdict"

    def post_key(self, number: int, rank: int) -> str:
        """Where a rank other than the leader posts."""
        return f"{self.prefix}/{number}/{rank}"

    @property
    def leader_key(self) -> str:
        """Holds the number of the round that the leader has come to, and who shares its host, if these came too."""
        return f"{self.prefix}/leader"

    @property
    def below(self) -> list[int]:
        """The ranks from which this one takes what they tell in the background: of its host, its shard, all shards.

        Every rank but the leader tells exactly one other.
        """
        below = list(self.hosts.neighbours[1:]) if self.is_speaker else []
        if self.rank == LEADER or self.collects:
            below += [rank for rank in self.shard.speakers or self.shard.ranks if rank != self.rank]
        return below + list(self.shard.collectors[1:] if self.rank == LEADER else ())

    @property
    def collects(self) -> bool:
        """Whether this rank is a collector, and not the leader."""
        return self.rank != LEADER and self.rank in self.shard.collectors

    def shard_key(self, number: int, collector: int) -> str:
        """Where a collector puts what its shard came with."""
        return f"{self.prefix}/{number}/shard/{collector}"

    def copy_key(self, number: int, collector: int) -> str:
        """Where the ranks of a shard wait for the verdict."""
        verdict_key = self.verdict_key(number)
        return verdict_key if collector == LEADER else copy_key(verdict_key, collector)

    def heard_key(self, number: int) -> str:
        """Where this rank waits for the verdict."""
        return self.verdict_key(number) if self.collects else self.copy_key(number, self.shard.collector)

    def copy_keys(self, number: int) -> list[str]:
        """Where the verdict stands besides."""
        return [self.copy_key(number, collector) for collector in self.shard.collectors[1:]]


class Seat(NamedTuple):
    """Who takes part, and the board on which the ranks of this host show what is compared in the background."""

    part: Part
    board: Board | None = None
