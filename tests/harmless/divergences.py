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
ALIKE = "the ranks differ at '"  # in what all ranks of a group raise, if some do: all have come to compare
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
    "reduction": APART,
    "group": APART,  # of the same ranks
    "exception": f"RegistrationFailed|{APART}",  # in a scope
    "fails": f"RegistrationFailed|{APART}",  # the same, and the rank goes on
    "other": APART,  # tensor in a gather
    "known": f"used different memory|{APART}",  # to all, but not the tensor that the others use
    "forgets": APART,  # to free, to trim or to compare
    "leaves": f"{APART}|{GONE}",  # and is never at that step
    "killed": f"{APART}|{GONE}",  # before that step
}
# The others may do no harm: the tensors lie in segments that have windows already, or no rank uses them.
NOTICED = frozenset(KINDS) - {"order", "swap", "skip", "fails", "forgets"}
# Steps at which all ranks of a group wait for each other.
MEETS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce", "plain", "barrier", "sync"})
# Ways to sum where the tensor of the scope is not in place, or its group has no window.
HAS_NO_WINDOW = frozenset({"out of place", "functional", "helper", "other group"})


@dataclass(frozen=True)
class Divergence:
    """The rank `rank` does something else at step `at`, perhaps with the tensor `other`."""

    kind: str
    at: int
    rank: int
    other: int = -1


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
    if not places:
        return None
    at, rank = chance.choice(places)
    return Divergence(kind, at, rank, min(_others(program.steps, at), default=-1))


def _others(steps: list[Step], at: int) -> set[int]:
    """Return the tensors that a step could use as well: of its group, large enough, still there, in no other use."""
    step, *later = steps[at:]
    scopes = [each for each in steps[:at] if each.kind == "scope" and each.group == step.group]
    made = {number: size for each in scopes for number, size in zip(each.tensors, each.sizes, strict=True)}
    used = {number for each in later for number in each.tensors}
    busy = {number for each in steps if each.kind == "start" for number in each.tensors}
    return {number for number in used - busy - {*step.tensors} if made.get(number, 0) >= max(step.sizes, default=0)}


def _can(kind: str, steps: list[Step], at: int, step: Step) -> bool:
    match kind:
        case "size" | "skip" | "fails":
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
        case "count" | "reduction":  # at the first sum of this tensor: later on nobody compares these
            sums = ("all_reduce", "start", "threads", "beside", "crowd")
            summed = {number for other in steps[:at] if other.kind in sums for number in other.tensors}
            return step.kind == "all_reduce" and HAS_NO_WINDOW.isdisjoint(step.how) and summed.isdisjoint(step.tensors)
        case "group":
            return step.kind == "all_reduce" and step.group in ("world", "twin") and "functional" not in step.how
        case "known":
            return step.kind == "all_reduce" and HAS_NO_WINDOW.isdisjoint(step.how) and bool(_others(steps, at))
        case "other":
            is_whole = step.kind in ("all_gather", "reduce_scatter") and "in place" in step.how
            return is_whole and bool(_others(steps, at))
        case "forgets":
            return step.kind in ("free", "flight", "trim", "sync", "reserve")
        case "leaves" | "killed":
            return step.kind in MEETS
    return True  # one more scope
