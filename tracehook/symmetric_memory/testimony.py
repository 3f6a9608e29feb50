"""What ranks know of the calls in question, once their digests differ, and which call that makes the first one.

A rank tells of the calls between the last one at which all were known to be alike and the first one at which they were
not, and of those after it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tracehook._core import Communicator
from tracehook.agreement.rank_names import RankNames
from tracehook.symmetric_memory import divergence

MOST = 2048  # calls that a rank tells of


class Testimony(NamedTuple):
    """What a rank can tell."""

    calls: int  # that it has made
    kernels: dict[str, bool]  # by call that it knows: whether NCCL took a symmetric kernel
    first: int  # the call that `digests` and `uses` begin with
    digests: list[int]
    texts: list[str]  # what calls used, each text once
    uses: list[int]  # by call, the place in `texts`

    def use(self, call: int) -> str:
        """Return what this rank used at a call that it knows."""
        return self.texts[self.uses[call - self.first]]

    def knows(self, call: int) -> bool:
        """Whether this rank knows the digest after a call."""
        return self.first <= call < self.first + len(self.digests)


def of_rank(communicator: Communicator, first: int, last: int, calls: int) -> Testimony:
    """Return what this rank knows of calls `first` to `last`, and of those up to `calls` that followed."""
    known, digests = communicator.digests(first, last)
    uses = [divergence.described(communicator, call) for call in range(known, known + len(digests))]
    places = {text: place for place, text in enumerate(dict.fromkeys(uses))}
    asked = range(max(first, calls - MOST), calls)
    kernels = {str(call): divergence.is_in_windows(communicator, call) for call in asked}
    told = {call: symmetric for call, symmetric in kernels.items() if symmetric is not None}
    return Testimony(calls, told, known, digests, list(places), [places[use] for use in uses])


def written(testimony: Testimony) -> str:
    """Return it as text."""
    return json.dumps(testimony)


def read(text: str | bytes) -> Testimony:
    """Return what :func:`written` made into that text."""
    return Testimony(*json.loads(text))


def difference(told: Sequence[Testimony], first: int, last: int, names: RankNames) -> str:
    """Say at which of the calls the ranks first used different memory, and who used what. `told`: by rank."""
    for call in range(first, last + 1):
        if all(one.knows(call) for one in told):
            alike = defaultdict(list)
            for rank, one in enumerate(told):
                alike[one.digests[call - one.first]].append(rank)
            if len(alike) > 1:
                return f"call {divergence.number(call)}: {_said(list(alike.values()), told, call, names)}"
    return f"one of the calls {divergence.number(first)} to {divergence.number(last)}, which they know no more"


def mixed_call(told: Sequence[Testimony]) -> int | None:
    """Return the first call for which NCCL took a symmetric kernel on some ranks only, of those that all know."""
    common = set(told[0].kernels).intersection(*(one.kernels for one in told[1:]))
    return min((int(call) for call in common if len({one.kernels[call] for one in told}) > 1), default=None)


def _said(alike: Sequence[list[int]], told: Sequence[Testimony], call: int, names: RankNames) -> str:
    """Say what the ranks made that are alike: rank 0 first, then all that differ from it."""
    made = []
    for ranks in alike:
        known = (use for rank in ranks if (use := told[rank].use(call)) != divergence.FORGOTTEN)
        made.append(([0] if ranks[0] == 0 else ranks, next(known, divergence.FORGOTTEN)))
    return "; ".join(f"{names.named(ranks)} made {use}" for ranks, use in sorted(made))
