"""What a rank that waits too long in a round asks the others, and what its process has done about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tracehook.agreement.agreement import Waiting

PATIENCE = 0.5  # seconds that a rank waits before it raises an alarm
LATE = 2.0  # seconds after which a rank no longer trusts that another one asks for it, too


class Alarm(NamedTuple):
    """What a rank that waits tells the others."""

    key: str  # of the communicator: equal on all its ranks
    rank: int  # who waits, in the group
    about: str  # what messages call the communicator
    topic: str
    entries: list[str]
    position: Sequence[int]
    verdict_key: str  # of the round
    facts: dict[str, Any]  # what the asker knows of itself, for those that answer
    timeout: float = 0.0  # seconds that the round may last


class OwnRound(NamedTuple):
    """A round that this process is in, on communicator `key`. `facts`: see :class:`Alarm`."""

    key: str
    waiting: Waiting
    facts: dict[str, Any]

    @property
    def patience(self) -> float:
        """Seconds that this rank waits before it asks."""
        return min(PATIENCE, self.waiting.topology.timeout / 4)  # so that a rank asks before its time-out

    @property
    def verdict_key(self) -> str:
        """Where the round's verdict will be."""
        return self.waiting.topology.verdict_key(self.waiting.number)

    def alarm(self) -> Alarm:
        """Return what this rank asks."""
        topology, post = self.waiting.topology, self.waiting.post
        return Alarm(
            self.key,
            topology.rank,
            topology.about,
            post.topic,
            post.entries,
            post.position,
            self.verdict_key,
            self.facts,
            topology.timeout,
        )


class Question(NamedTuple):
    """What this process has done about a round that takes long."""

    key: str  # whoever writes it first asks for all that ask the same
    is_own: bool
    is_put: bool
    at: float  # seconds of the monotonic clock
