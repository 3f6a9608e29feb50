"""Where the ranks of all groups of this process meet: for each store one line for rounds, and one watch."""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.hook import background
from tracehook.hook.groups import cloned_store, job_store
from tracehook.symmetric_memory.alarm import LOOK, Watch
from tracehook.symmetric_memory.lines import Lines

if TYPE_CHECKING:
    from torch.distributed import Store


class Meeting:
    """What one process has of one store. The groups of a job have prefixes of one store, so they share it.

    `store` is a separate connection, so the program can end its store while the meeting exists. :class:`Watch`
    describes `is_left` and `on_end`.
    """

    def __init__(
        self,
        store: Store,
        know: Callable[[str], None],
        is_left: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.lines = Lines(store)
        self.watch = Watch(store, know, token, is_left, on_end)

    def count(self, key: str) -> int:
        """Add one to a counter in the store, and return it; raises what the store raises."""
        try:
            self.store.check([key])  # which may be done twice, unlike the addition
        except RuntimeError:  # once broken, a connection stays so
            self.store = cloned_store(self.store)
        return int(self.store.add(key, 1))


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
        # The objects that groups of torch have, and the tokens. Never held: with the last one a store ends, and its
        # port is free.
        self._known: weakref.WeakKeyDictionary[Store, str] = weakref.WeakKeyDictionary()
        # Who began the sequences of rounds of a communicator, by its native number: its group, or nobody's. The watch
        # may begin them while the program does.
        self.beginning = threading.Lock()
        self.begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # for moments; a watch takes it under its own, nothing is taken under it
        self._listening: threading.Thread | None = None
        self._over = threading.Event()

    def listen(self) -> None:
        """Have this process hear the alarms at the job's store, as soon as there is one. Does not wait."""
        with self._lock:
            if self._listening is None and self._living(job_store()) is None:
                self._listening = background.start(self, self._listen, "tracehook-listen")

    def _listen(self) -> None:
        try:
            while not self._over.is_set():
                # The store may have ended, and its group will; or it is just now unable.
                with contextlib.suppress(RuntimeError):
                    store = job_store()
                    if store is not None:
                        self.at(store).watch.start()
                        break
                self._over.wait(LOOK)
        finally:
            with self._lock:
                self._listening = None

    def end_soon(self) -> None:
        """At exit: try no more to reach the job's store."""
        self._over.set()

    def at(self, store: Store) -> Meeting:
        """Return the meeting at the store that lies under all prefixes of `store`; raises what the store raises."""
        with self._lock:
            found = self._living(store)
        if found is not None:
            return found
        below = _below(store)
        name = token(below)
        made: Meeting | None = None
        while True:
            with self._lock:
                self._forget_ended()
                found = self._meetings.get(name) or made
                if found is not None:
                    self._meetings[name] = found
                    self._known[store] = name
                    return found
            made = Meeting(cloned_store(below), self._know, lambda: self._is_left(name), self._ended)

    def place(self, store: Store | None) -> MeetingPlace:
        """Return where those meet who have `store` with its prefixes; raises what the store raises."""
        if store is None:
            raise RuntimeError("the default group has ended, and with it the store where ranks meet")
        return MeetingPlace(self.at(store), token(store))

    def _living(self, store: Store | None) -> Meeting | None:
        name = self._known.get(store) if store is not None else None
        found = self._meetings.get(name) if name is not None else None
        return None if found is None or found.watch.has_ended else found

    def _is_left(self, name: str) -> bool:
        """Whether no group has the store with that token any more."""
        with self._lock:
            return name not in self._known.values()

    def _ended(self) -> None:
        with self._lock:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Hold no connection to a store that nobody needs."""
        needed = set(self._known.values())
        for name, meeting in list(self._meetings.items()):
            if meeting.watch.has_ended or not (meeting.watch.has_begun or name in needed):
                del self._meetings[name]


def token(store: Store) -> str:
    """Return a name that all who use `store`, with its prefixes, get alike, and nobody else."""
    standing: bytes = store.compare_set("tracehook/token", "", uuid.uuid4().hex)
    return standing.decode()


def _below(store: Any) -> Any:
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store
