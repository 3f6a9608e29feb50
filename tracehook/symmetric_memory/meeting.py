"""Where the ranks of all groups of this process meet: for each store one line for rounds, and one watch."""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracehook.hook.groups import job_store
from tracehook.symmetric_memory.alarm import LOOK, Watch
from tracehook.symmetric_memory.lines import Lines

if TYPE_CHECKING:
    from torch.distributed import Store


class Meeting:
    """What one process has of one store. The groups of a job have prefixes of one store, so they share it."""

    def __init__(self, store: Store, know: Callable[[str], None]) -> None:
        self.store = store
        self.lines = Lines(store)
        self.watch = Watch(store, know, token)


class Meetings:
    """The meetings of this process. Any thread.

    `know` is called with the key of a communicator that others ask about and nobody here has watched so far.
    """

    def __init__(self, know: Callable[[str], None] = lambda _: None) -> None:
        self._know = know
        self._meetings: dict[Any, tuple[Store, Meeting]] = {}
        # Who began the sequences of rounds of a communicator, by its native number: its group, or nobody's. The watch
        # may begin them while the program does.
        self.beginning = threading.Lock()
        self.begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._is_listening = False

    def listen(self) -> None:
        """Have this process hear the alarms at the job's store, as soon as there is one. Does not wait."""
        if not self._is_listening:
            self._is_listening = True
            threading.Thread(target=self._listen, name="tracehook-listen", daemon=True).start()

    def _listen(self) -> None:
        while (store := job_store()) is None:
            time.sleep(LOOK)
        self.at(store).watch.start()

    def at(self, store: Store) -> Meeting:
        """Return the meeting at the store that lies under all prefixes of `store`."""
        below = _below(store)
        with self._lock:
            _, meeting = self._meetings.setdefault(_identity(below), (below, Meeting(below, self._know)))
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
