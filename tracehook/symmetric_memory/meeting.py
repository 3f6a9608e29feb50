"""Where the ranks of all groups of this process meet: for each store one line for rounds, and one watch."""

from __future__ import annotations

import threading
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from tracehook.symmetric_memory.alarm import Watch
from tracehook.symmetric_memory.lines import Lines

if TYPE_CHECKING:
    from torch.distributed import Store


class Meeting:
    """What one process has of one store. The groups of a job have prefixes of one store, so they share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lines = Lines(store)
        self.watch = Watch(store)


class Meetings:
    """The meetings of this process. Any thread."""

    def __init__(self) -> None:
        self._meetings: dict[Any, tuple[Store, Meeting]] = {}
        # Who began the sequences of rounds of a communicator, by its native number: its group, or nobody's.
        self.begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def at(self, store: Store) -> Meeting:
        """Return the meeting at the store that lies under all prefixes of `store`."""
        below = _below(store)
        with self._lock:
            _, meeting = self._meetings.setdefault(_identity(below), (below, Meeting(below)))
        return meeting


def token(store: Store) -> str:
    """Return a name that all who use `store`, with its prefixes, get alike, and nobody else."""
    standing: bytes = store.compare_set("tracehook/token", "", uuid.uuid4().hex)
    return standing.decode()


def _below(store: Any) -> Any:
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store


def _identity(store: Any) -> Any:
    # The default group and a group that was made again may have objects of their own for one server.
    return (store.host, store.port) if hasattr(store, "port") else id(store)
