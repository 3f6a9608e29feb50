"""What a rank that waits too long in a round asks the others, and how they hear it.

The store has one list of alarms for a job. A text that everybody has passed stays for `KEPT` further ones, so the list
does not grow: whoever comes later begins at the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.agreement.store_worker import peeked

if TYPE_CHECKING:
    from torch.distributed import Store

    from tracehook.agreement.agreement import Waiting

PATIENCE = 0.5  # seconds that a rank waits before it raises an alarm
COUNT_KEY = "tracehook/alarms"
KEPT = 4096
MOST_UNWRITTEN = 20  # looks at an alarm that is counted and not there


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

    @property
    def patience(self) -> float:
        """Seconds that the rank waits before it asks: less than its round may last."""
        return min(PATIENCE, self.timeout / 4)


def alarm_of(key: str, waiting: Waiting, facts: Mapping[str, Any]) -> Alarm:
    """Return what this rank asks if it waits too long in a round; `facts`: see :class:`Alarm`."""
    topology, post = waiting.topology, waiting.post
    verdict_key = topology.verdict_key(waiting.number)
    wish = post.topic, post.entries, post.position
    return Alarm(key, topology.rank, topology.about, *wish, verdict_key, dict(facts), topology.timeout)


class AlarmFeed:
    """The alarms at one store, as one process hears them. For one thread."""

    def __init__(self) -> None:
        self._heard = 0  # number of the last alarm that was taken
        self._looks = 0  # at the next one, which is counted and not there

    def news(self, store: Store) -> Iterator[str]:
        """Yield the texts that are new, in order, each once; raises what the store raises."""
        count = store.add(COUNT_KEY, 0)
        self._heard = max(self._heard, count - KEPT)
        while self._heard < count:
            text = peeked(store, _key(self._heard + 1)).decode()
            if not text.startswith("["):
                self._looks += 1
                # Its writer has counted it, and not written it yet, or has died in between.
                if self._looks < MOST_UNWRITTEN:
                    return
            self._looks = 0
            self._heard += 1
            if text.startswith("["):
                yield text


def put(store: Store, text: str) -> None:
    """Add an alarm to the list, and take the oldest away."""
    number = store.add(COUNT_KEY, 1)
    store.set(_key(number), text)
    if number > KEPT:
        store.delete_key(_key(number - KEPT))


def _key(number: int) -> str:
    return f"{COUNT_KEY}/{number}"
