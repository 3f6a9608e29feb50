"""Which segments stay unregistered by choice: the rules of ``SYMM_REGISTER_SEGMENTS``, and the program's no to NCCL.

A segment is born in the allocator's callback, where no Python can run. So a rule is data, which the native side has
before there is a segment (cpp/registrar/segment_rules.h).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from textwrap import shorten
from typing import Any, NamedTuple

from tracehook.log.tables import MEMORIES, POOLS
from tracehook.settings import ALL, FROM, NO_GRAPH_POOLS, NO_PAUSABLE, OWN_ALLOCATORS, in_bytes_of

GROUP = "tracehook.segments"
_MOST = 15  # what the native side takes
_ANY = (1 << 32) - 1
_MOST_RANKS = (1 << 31) - 1


@dataclass(frozen=True)
class LeaveOut:
    """Segments that tracehook does not register with communicators: those that fit all that is given.

    All ranks of a job must have it alike.
    """

    pools: tuple[str, ...] = ()
    """Pools of torch's allocator: ``default``, ``private``, ``graph``, ``own``; empty: any."""

    memories: tuple[str, ...] = ()
    """``cudaMalloc``, ``shareable``, ``private``, ``pausable`` or ``unknown``: `memory_kind` in docs/log-schema.md."""

    below: int = 0
    """Only segments of fewer bytes; 0: of any size."""

    least_ranks: int = 0
    """Only with communicators of at least so many ranks.

    No rule that asks for ranks fits a communicator whose size is not known: one of ``ncclCommSplit`` without blocking.
    """

    most_ranks: int | None = None
    """Only with communicators of at most so many ranks."""

    hosts: str = ""
    """Only with communicators of ``one`` host, or of ``several``."""

    def __post_init__(self) -> None:
        """Refuse what fits nothing."""
        for name, known in (("pools", POOLS), ("memories", MEMORIES)):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not set(given) <= set(known):
                raise ValueError(f"{name} is {given!r}: expected a tuple of {', '.join(known)}")
        if self.hosts not in ("", "one", "several"):
            raise ValueError(f"hosts is {self.hosts!r}: expected one or several")
        numbers = (self.below, self.least_ranks, 0 if self.most_ranks is None else self.most_ranks)
        if not all(type(number) is int and 0 <= number < limit for number, limit in zip(numbers, _LIMITS, strict=True)):
            raise ValueError("below, least_ranks and most_ranks are whole numbers, not below 0")

    def of_all_segments(self) -> bool:
        """Whether it fits each segment, so that such a communicator gets none."""
        return not self.pools and not self.memories and not self.below

    def of_captured_calls(self) -> bool:
        """Whether it fits all that a graph has: then no captured call runs on registered memory."""
        return "graph" in self.pools and self == LeaveOut(pools=self.pools)

    def row(self) -> tuple[int, int, int, int, int, bool, bool]:
        """Return it as the native side has it."""
        most = _MOST_RANKS if self.most_ranks is None else self.most_ranks
        pools, memories = _bits(self.pools, POOLS), _bits(self.memories, MEMORIES)
        return pools, memories, self.below, self.least_ranks, most, self.hosts != "several", self.hosts != "one"


_LIMITS = (1 << 63, _MOST_RANKS, _MOST_RANKS)


class SegmentRule(NamedTuple):
    """A rule, and the name of who says so."""

    name: str
    what: LeaveOut

    def in_words(self) -> str:
        """Return all of it, as ranks compare it."""
        return f"{self.name} leaves out {self.what.row()}"


ALWAYS = SegmentRule(NO_PAUSABLE, LeaveOut(memories=("pausable",)))
"""The native side has it by itself, at position 0."""


def rules_of(
    chosen: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], object],
    offered: Iterable[Any] = (),
    registers: bool = True,
) -> list[SegmentRule]:
    """Return all rules, by position: those of the setting, of installed packages, and of the program's no to NCCL.

    `say` gets a line for each name of the setting that is no rule, and for each no if this process registers
    segments. `offered`: entry points in place of the installed ones.
    """
    rules = [ALWAYS]
    if OWN_ALLOCATORS not in chosen:
        rules.append(SegmentRule("no-own-allocators", LeaveOut(pools=("own",))))
    for name in chosen:
        if name.startswith(FROM):
            rules.append(SegmentRule(name, LeaveOut(below=in_bytes_of(name.removeprefix(FROM)))))
        elif name == NO_GRAPH_POOLS:
            rules.append(SegmentRule(name, LeaveOut(pools=("graph",))))
        elif name not in (ALL, NO_PAUSABLE, OWN_ALLOCATORS):
            try:
                rules += [SegmentRule(name, what) for what in _installed(name, offered)]
            except Exception as problem:
                text = shorten(" ".join(traceback.format_exception_only(problem)), 300)
                say(f"SYMM_REGISTER_SEGMENTS={name} leaves nothing out: {text}")
    for refusal in refusals(environment):
        rules.append(refusal)
        if registers:
            say(f"{refusal.name} is set, so tracehook leaves out {_WHAT[refusal.name]}, too")
    if len(rules) > _MOST + 1:
        say(f"tracehook follows {_MOST} rules for segments, and leaves the others of {len(rules) - 1} unread")
    return rules[: _MOST + 1]


_LOCAL, _GRAPH = "NCCL_LOCAL_REGISTER=0", "NCCL_GRAPH_REGISTER=0"
_WHAT = {_LOCAL: "all segments", _GRAPH: "segments of graphs"}


def refusals(environment: Mapping[str, str]) -> list[SegmentRule]:
    """Return what the program said no to in NCCL's variables."""
    said = {name for name in ("NCCL_LOCAL_REGISTER", "NCCL_GRAPH_REGISTER") if environment.get(name, "").strip() == "0"}
    rules = (SegmentRule(_LOCAL, LeaveOut()), SegmentRule(_GRAPH, LeaveOut(pools=("graph",))))
    return [rule for rule in rules if rule.name.removesuffix("=0") in said]


def _installed(name: str, offered: Iterable[Any]) -> list[LeaveOut]:
    there = list(offered or metadata.entry_points(group=GROUP))
    points = [point for point in there if point.name == name]
    if len(points) != 1:
        built_in = (ALL, NO_GRAPH_POOLS, NO_PAUSABLE, f"{FROM}SIZE", OWN_ALLOCATORS)
        known = ", ".join([*built_in, *sorted({point.name for point in there})])
        many = "no" if not points else "more than one"
        raise LookupError(f"{many} installed package has it under {GROUP}; expected one of {known}")
    found = points[0].load()
    rules = [found] if isinstance(found, LeaveOut) else list(found)
    if not all(isinstance(rule, LeaveOut) for rule in rules):
        raise TypeError(f"{points[0].value} is no LeaveOut, and no list of them")
    return rules


def _bits(names: Sequence[str], known: Sequence[str]) -> int:
    return sum(1 << known.index(name) for name in names) if names else _ANY
