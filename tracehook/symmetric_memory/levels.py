"""Through whom a rank speaks in the store, so that no key there has more than some hundred readers.

The ranks that speak in the store, one for each host or all, are cut into shards. The first of a shard, its *collector*,
takes the posts of the others to the leader in one value, and brings them the verdict. A group whose speakers fit into
one shard has no collectors, and its ranks deal with the leader alone.

All ranks have to cut alike. So the shards depend on nothing but the number of ranks and what a verdict told of hosts.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

MOST = 128  # speakers of a shard


class Levels(NamedTuple):
    """The shards, as one rank sees them."""

    collectors: Sequence[int] = ()  # the first speaker of each shard, ascending; the first of them is the leader
    collector: int = 0  # of this rank's shard
    speakers: Sequence[int] = ()  # of this rank's shard; those that may have posts of other ranks with theirs
    ranks: Sequence[int] = ()  # for which these speak, with themselves


def seen_by(rank: int, by_speaker: Sequence[Sequence[int]]) -> Levels | None:
    """Return the shards as `rank` sees them; None if there is only one.

    Args:
        rank: whose view it is.
        by_speaker: for each speaker the ranks that it speaks for, with itself as the first.

    """
    return cut(rank, by_speaker, MOST) if len(by_speaker) > MOST else None


def flat(ranks: int, speakers: Sequence[int] = ()) -> Levels:
    """Return one shard: all deal with the leader."""
    return Levels((), 0, speakers, range(ranks))


def cut(rank: int, by_speaker: Sequence[Sequence[int]], most: int) -> Levels:
    """Return shards of so many speakers."""
    speakers = [each[0] for each in by_speaker]
    place = next(number for number, each in enumerate(by_speaker) if rank in each)
    collectors = speakers[::most]
    own = bisect_right(collectors, speakers[place]) - 1
    shard = by_speaker[own * most : (own + 1) * most]
    return Levels(collectors, collectors[own], [each[0] for each in shard], sorted(itertools.chain(*shard)))
