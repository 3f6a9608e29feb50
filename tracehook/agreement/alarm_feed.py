"""How a process hears of alarms: it asks the store for their number each second, and reads those that are new.

The store has one list of alarms for a job. A text that everybody has passed stays for `KEPT` further ones, so the list
does not grow: whoever comes later begins at the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracehook.agreement.store_worker import peeked

if TYPE_CHECKING:
    from torch.distributed import Store

COUNT_KEY = "tracehook/alarms"
KEPT = 4096
MOST_UNWRITTEN = 20  # looks at an alarm that is counted and not there


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
