"""How messages outside of SQL name a communicator and its ranks; macros.sql does it for the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tracehook.log.lines import whole_number
from tracehook.log.reader import ProcessLog

NAMED = "communicator.group"  # the event that names one
KNOWN = "group.known"  # the event that tells of any group of torch, with or without a communicator
_MOST_RANKS = 8  # that are named


@dataclass(frozen=True)
class NamedGroup:
    """The group of torch that stands for a communicator. `members`: global ranks, in the order of the group."""

    label: str
    members: tuple[int, ...]

    def __str__(self) -> str:
        """Return it with its ranks: ``tp_1 (ranks 4, 5)``."""
        return f"{self.label} ({_ranks(self.members)})" if self.members else self.label

    def beside(self, key: str) -> str:
        """Return a communicator's key with it: ``43875d59c706ba92 (group tp_1; ranks 4, 5)``."""
        return f"{key} (group {self.label}{'; ' * bool(self.members)}{_ranks(self.members)})"

    def rank(self, own: int) -> str:
        """Return a rank of the group as the job knows it: ``5 (1 of tp_1)``, or ``5`` where the group counts alike."""
        if own >= len(self.members) or self.members[own] == own:
            return str(own)
        return f"{self.members[own]} ({own} of {self.label})"


def group_in(event: dict[str, Any]) -> NamedGroup:
    """Return the group that an event ``communicator.group`` names."""
    label = event.get("desc") or event.get("group") or "?"
    told = event.get("members")
    members = [whole_number(rank, 1 << 31) for rank in told] if isinstance(told, list) else []
    return NamedGroup(str(label), () if None in members else tuple(rank for rank in members if rank is not None))


def known_in(event: dict[str, Any]) -> tuple[list[int], bool]:
    """Return the global ranks of a group that an event ``group.known`` tells of, and whether its backend is NCCL."""
    return list(group_in(event).members), "nccl" in str(event.get("backend") or "")


def groups_of(logs: Iterable[ProcessLog]) -> list[NamedGroup]:
    """Return the groups that logs name, each once, by their ranks."""
    named = {event.get("comm"): group_in(event) for log in logs for event in log.events if event["event"] == NAMED}
    return sorted(set(named.values()), key=lambda group: (group.members, group.label))


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    shown, more = sorted(ranks)[:_MOST_RANKS], len(ranks) - _MOST_RANKS
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, shown))}" + (f" and {more} more" if more > 0 else "")
