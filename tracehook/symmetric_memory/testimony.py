"""What ranks know of the calls in question, once their digests differ, and which call that makes the first one.

A rank tells of the calls between the last one at which all were known to be alike and the first one at which they were
not, and of those after it. Most ranks know the same, so the testimony of many ranks is about as long as that of one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tracehook.agreement.rank_names import RankNames
from tracehook.symmetric_memory import divergence

if TYPE_CHECKING:
    from tracehook._core import Communicator

MOST = 2048  # calls that a rank tells of


class Version(NamedTuple):
    """What some ranks know alike of the calls in question."""

    ranks: list[int]
    first: int  # the call that `digests` and `uses` begin with
    digests: list[int]
    texts: list[str]  # what calls used, each text once
    uses: list[int]  # by call, the place in `texts`

    def use(self, call: int) -> str:
        """Return what these ranks used at a call that they know."""
        return self.texts[self.uses[call - self.first]]

    def knows(self, call: int) -> bool:
        """Whether these ranks know the digest after a call."""
        return self.first <= call < self.first + len(self.digests)

    def completed(self, other: Version) -> Version:
        """Return this version with what `other`, whose digests are equal, still knows of its uses, and its ranks."""
        uses = [
            theirs if mine == divergence.FORGOTTEN else mine
            for mine, theirs in zip(_spelled(self), _spelled(other), strict=True)
        ]
        return version(sorted([*self.ranks, *other.ranks]), self.first, self.digests, uses)


class Testimony(NamedTuple):
    """What one rank, or many, can tell."""

    calls: int  # the most that one of them has made
    kernels: dict[str, bool | None]  # by call that all know: whether NCCL took a symmetric kernel; None: on some only
    versions: list[Version]


def version(ranks: Sequence[int], first: int, digests: Sequence[int], uses: Sequence[str]) -> Version:
    """Return what these ranks know, with each text once."""
    texts = list(dict.fromkeys(uses))
    places = {text: place for place, text in enumerate(texts)}
    return Version(list(ranks), first, list(digests), texts, [places[use] for use in uses])


def of_rank(communicator: Communicator, rank: int, first: int, last: int, calls: int) -> Testimony:
    """Return what this rank knows of calls `first` to `last`, and of those up to `calls` that followed."""
    known, digests = communicator.digests(first, last)
    uses = [divergence.described(communicator, call) for call in range(known, known + len(digests))]
    asked = range(max(first, calls - MOST), calls)
    kernels = {str(call): divergence.is_in_windows(communicator, call) for call in asked}
    told: dict[str, bool | None] = {call: symmetric for call, symmetric in kernels.items() if symmetric is not None}
    return Testimony(calls, told, [version([rank], known, digests, uses)])


def joined(told: Sequence[Testimony]) -> Testimony:
    """Return what several can tell together."""
    common = set(told[0].kernels).intersection(*(one.kernels for one in told[1:]))
    values = {call: {one.kernels[call] for one in told} for call in sorted(common, key=int)}
    kernels = {call: found.pop() if len(found) == 1 else None for call, found in values.items()}
    versions: dict[tuple[int, ...], Version] = {}
    for one in told:
        for each in one.versions:
            alike = (each.first, *each.digests)
            versions[alike] = versions[alike].completed(each) if alike in versions else each
    return Testimony(max(one.calls for one in told), kernels, list(versions.values()))


def written(testimony: Testimony) -> str:
    """Return it as text."""
    return json.dumps(testimony)


def read(text: str | bytes) -> Testimony:
    """Return what :func:`written` made into that text."""
    calls, kernels, versions = json.loads(text)
    return Testimony(calls, kernels, [Version(*each) for each in versions])


def difference(testimony: Testimony, first: int, last: int, names: RankNames) -> str:
    """Say at which of the calls the ranks first used different memory, and who used what."""
    versions = testimony.versions
    for call in range(first, last + 1):
        if not all(each.knows(call) for each in versions):
            continue
        by_digest = defaultdict(list)
        for each in versions:
            by_digest[each.digests[call - each.first]].append(each)
        if len(by_digest) > 1:
            return f"call {divergence.number(call)}: {_said(list(by_digest.values()), call, names)}"
    return f"one of the calls {divergence.number(first)} to {divergence.number(last)}, which they know no more"


def mixed_call(testimony: Testimony) -> int | None:
    """Return the first call for which NCCL took a symmetric kernel on some ranks only, of those that all know."""
    return min((int(call) for call, symmetric in testimony.kernels.items() if symmetric is None), default=None)


def _said(alike: Sequence[Sequence[Version]], call: int, names: RankNames) -> str:
    """Say what the ranks made that are alike: rank 0 first, then all that differ from it."""
    told = []
    for versions in alike:
        ranks = sorted(rank for each in versions for rank in each.ranks)
        uses = sorted((each.use(call) for each in versions), key=lambda use: use == divergence.FORGOTTEN)
        told.append(([0] if ranks[0] == 0 else ranks, uses[0]))
    return "; ".join(f"{names.named(ranks)} made {use}" for ranks, use in sorted(told))


def _spelled(told: Version) -> list[str]:
    return [told.texts[place] for place in told.uses]
