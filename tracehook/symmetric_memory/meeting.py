"""Where the ranks of all groups of this process meet: for each store one line for rounds, and one watch."""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.hook.groups import cloned_store, job_store
from tracehook.symmetric_memory.alarm import LOOK, Watch
from tracehook.symmetric_memory.lines import Lines

if TYPE_CHECKING:
    from torch.distributed import Store


class Meeting:
    """What one process has of one store. The groups of a job have prefixes of one store, so they share it.

    `store` is a connection of its own: whoever made the store can end it while this is there.
    """

    def __init__(self, store: Store, know: Callable[[str], None]) -> None:
        self.store = store
        self.lines = Lines(store)
        self.watch = Watch(store, know, token)


class MeetingPlace(NamedTuple):
    """A meeting, and what those who share it under one prefix are called there."""

    meeting: Meeting
    name: str


class Meetings:
    """The meetings of this process. Any thread.

    `know` is called with the key of a communicator that others ask about and nobody here has watched so far.
    """

    def __init__(self, know: Callable[[str], None] = lambda _: None) -> None:
        self._know = know
        self._meetings: dict[str, Meeting] = {}  # by the token of the store
        # The objects that groups of torch have. Never held: with the last one a store ends, and its port is free.
        self._known: weakref.WeakKeyDictionary[Store, Meeting] = weakref.WeakKeyDictionary()
        # Who began the sequences of rounds of a communicator, by its native number: its group, or nobody's. The watch
        # may begin them while the program does.
        self.beginning = threading.Lock()
        self.begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._is_listening = False

    def listen(self) -> None:
        """Have this process hear the alarms at the job's store, as soon as there is one. Does not wait."""
        with self._lock:
            if self._is_listening or self._living(job_store()) is not None:
                return
            self._is_listening = True
        threading.Thread(target=self._listen, name="tracehook-listen", daemon=True).start()

    def _listen(self) -> None:
        try:
            while (store := job_store()) is None:
                time.sleep(LOOK)
            self.at(store).watch.start()
        except RuntimeError:
            pass  # the store has ended: so will its group
        finally:
            with self._lock:
                self._is_listening = False

    def at(self, store: Store) -> Meeting:
        """Return the meeting at the store that lies under all prefixes of `store`; raises what the store raises."""
        with self._lock:
            found = self._living(store)
        if found is not None:
            return found
        below = _below(store)
        name = token(below)
        with self._lock:
            for old in [old for old, meeting in self._meetings.items() if meeting.watch.has_ended]:
                del self._meetings[old]
            found = self._meetings.get(name)
            if found is None:
                found = self._meetings[name] = Meeting(cloned_store(below), self._know)
            self._known[store] = found
        return found

    def place(self, store: Store) -> MeetingPlace:
        """Return where those meet who have `store` with its prefixes; raises what the store raises."""
        return MeetingPlace(self.at(store), token(store))

    def _living(self, store: Store | None) -> Meeting | None:
        found = self._known.get(store) if store is not None else None
        return None if found is None or found.watch.has_ended else found


def token(store: Store) -> str:
    """Return a name that all who use `store`, with its prefixes, get alike, and nobody else."""
    standing: bytes = store.compare_set("tracehook/token", "", uuid.uuid4().hex)
    return standing.decode()


def _below(store: Any) -> Any:
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store
