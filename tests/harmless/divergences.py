"""What one rank may do that the others do not: one divergence in a correct program, and how it has to end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from programs import Program, Step

APART = (
    r"Registration(?:Mismatch|Timeout)|the ranks (?:differ|are not at the same point)|another rank|did not come"
    r"|came late|Watchdog caught collective operation timeout"
)
GONE = r"Connection|Broken pipe|store failed|reset by peer|NCCL error"
# By kind: what some rank has to say, unless every rank ends well and all results are right. A rank that wants a window
# alone waits alone, so a mismatch may end as a time-out.
KINDS = {
    "size": APART,  # of a scope's tensors
    "order": APART,  # of the tensors in a scope
    "swap": APART,  # of two scopes
    "skip": APART,  # of a scope: the tensors lie in ordinary memory
    "extra": APART,  # scope
    "memory": APART,  # ordinary memory in a collective of a window
    "count": APART,  # of elements
    "group": APART,  # of the same ranks
    "exception": f"RegistrationFailed|{APART}",  # in a scope
    "leaves": f"{APART}|{GONE}",  # and is never at that step
    "killed": f"{APART}|{GONE}",  # before that step
}
# The others may do no harm: the tensors lie in segments that have windows already, or no rank uses them.
NOTICED = frozenset(KINDS) - {"order", "swap", "skip"}
# Steps at which all ranks of a group wait for each other.
MEETS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce", "plain", "barrier", "sync"})
# Ways to sum where the tensor of the scope is not in place, or its group has no window.
HAS_NO_WINDOW = frozenset({"out of place", "functional", "helper", "other group"})


@dataclass(frozen=True)
class Divergence:
    """The rank `rank` does something else at step `at`."""

    kind: str
    at: int
    rank: int


def kind_of(seed: int) -> str:
    """Return the kind of a seed: each has its turn."""
    return list(KINDS)[seed % len(KINDS)]


def draw(seed: int, program: Program) -> Divergence | None:
    """Draw what diverges; None if the program has no step where this can be."""
    kind = kind_of(seed)
    ranks = len(program.groups["world"][0])
    chance = random.Random(f"divergence {seed}")
    places = [
        (at, rank)
        for at, step in enumerate(program.steps)
        for rank in range(ranks)
        if len(program.members(step.group, rank)) > 1 and _can(kind, program.steps, at, step)
    ]
    return Divergence(kind, *chance.choice(places)) if places else None


def _can(kind: str, steps: list[Step], at: int, step: Step) -> bool:
    match kind:
        case "size" | "skip":
            return step.kind == "scope"
        case "exception":  # and the ranks meet again, or nobody notices
            return step.kind == "scope" and any(
                later.kind in MEETS and later.group == step.group for later in steps[at + 1 :]
            )
        case "order":
            return step.kind == "scope" and len(set(step.sizes)) > 1
        case "swap":
            other = steps[at + 1] if at + 1 < len(steps) else step
            return step.kind == other.kind == "scope" and step.group == other.group and step.sizes != other.sizes
        case "memory":
            return step.kind == "all_reduce" and HAS_NO_WINDOW.isdisjoint(step.how)
        case "count":  # at the first sum of this tensor: later on nobody compares numbers of elements
            summed = {
                number for other in steps[:at] if other.kind in ("all_reduce", "start") for number in other.tensors
            }
            return step.kind == "all_reduce" and HAS_NO_WINDOW.isdisjoint(step.how) and summed.isdisjoint(step.tensors)
        case "group":
            return step.kind == "all_reduce" and step.group in ("world", "twin") and "functional" not in step.how
        case "leaves" | "killed":
            return step.kind in MEETS
    return True  # one more scope
