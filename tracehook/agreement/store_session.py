"""Where the ranks of all groups of this process meet: for each store its workers, and one watchdog."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.agreement.store_worker import StoreWorkers, token
from tracehook.agreement.watchdog import LOOK, Listener, Watchdog
from tracehook.hook import background
from tracehook.hook.groups import any_exists, below, cloned_store, stores
from tracehook.log import clock, threads

if TYPE_CHECKING:
    from torch.distributed import Store


# The time-out of our own connections, and so of each try to make one anew. torch asks a name server for the store's
# name, and a lost packet costs 5 s there, so it is longer. Between two tries tracehook looks whether the store has
# ended. All waits have time-outs of their own.
_CONNECTS = timedelta(seconds=8)
# Seconds after the birth of a communicator in which torch enters its group, on a busy machine.
_ENTERED_WITHIN = 20.0


class StoreSession(NamedTuple):
    """What one process has of one store. The groups of a job have prefixes of one store, so they share it."""

    name: str  # what only this store is called
    workers: StoreWorkers
    watchdog: Watchdog


class StoreSessions:
    """The sessions of this process. Any thread.

    `know` also gets the session where others ask; `listeners` makes those of a watchdog. See :class:`Watchdog`.
    """

    def __init__(
        self,
        know: Callable[[str, StoreSession], None] = lambda key, session: None,  # noqa: ARG005
        listeners: Callable[[], Mapping[str, Listener]] = dict,
        patience: float = 60.0,
    ) -> None:
        self._know = know
        self._listeners = listeners
        self._patience = patience
        self._sessions: dict[str, StoreSession] = {}  # by the token of the store
        # The objects that groups of torch have, and the tokens. Never held: with the last one a store ends, and its
        # port is free.
        self._known: weakref.WeakKeyDictionary[Store, str] = weakref.WeakKeyDictionary()
        # What began the sequences of rounds of a communicator, by its native number: its group, or none. The watchdog
        # may begin them while the program does.
        self.beginning = threading.Lock()
        self.begun: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # for moments; a watchdog takes it under its own, nothing is taken under it
        self._listening: threads.Thread | None = None
        self._looks_until = 0.0
        self._over = threading.Event()

    def listen(self) -> None:
        """Have this process hear the alarms at the stores of its groups. A communicator was born; does not wait.

        That may be before torch has entered its group, so a thread looks for some seconds.
        """
        with self._lock:
            self._looks_until = clock.monotonic() + _ENTERED_WITHIN
            if self._listening is None:
                self._listening = background.start(self, self._listen, "tracehook-listen")

    def _listen(self) -> None:
        while not self._over.is_set():
            hears_all = self._hears_all()
            with self._lock:
                if hears_all and clock.monotonic() >= self._looks_until:
                    self._listening = None
                    return
            self._over.wait(LOOK)

    def _hears_all(self) -> bool:
        """Begin to hear at each store of a group; tell whether all of them have answered."""
        found: list[Any] = []
        heard = 0
        with contextlib.suppress(Exception):  # torch enters a group, or removes one, just now
            found = stores()
        for store in found:
            # It may have ended, and its group will; or it is just now unable. One in Python raises anything.
            with contextlib.suppress(Exception):
                self.at(store).watchdog.start()
                heard += 1
        return heard == len(found)

    def end_soon(self) -> None:
        """At exit: try no more to reach the job's store."""
        self._over.set()

    def at(self, store: Store) -> StoreSession:
        """Return the session at the store that lies under all prefixes of `store`; raises what the store raises."""
        with self._lock:
            found = self._living(store)
        if found is not None:
            return found
        base = below(store)
        name = self._known_name(base) or token(base)
        had_groups = any_exists()
        made: StoreSession | None = None
        while True:
            with self._lock:
                self._forget_ended()
                found = self._sessions.get(name) or made
                if found is not None:
                    self._sessions[name] = found
                    self._known[store] = name
                    return found
            own = cloned_store(base)  # the program may end its store while the session exists
            own.set_timeout(_CONNECTS)
            watchdog = Watchdog(
                own,
                lambda key: self._know(key, self._sessions[name]),
                lambda: self._is_left(name) or (had_groups and not any_exists()),
                self._forget_ended,
                self._listeners(),
                self._patience,
                name,
            )
            made = StoreSession(name, StoreWorkers(own), watchdog)

    def _living(self, store: Store | None) -> StoreSession | None:
        name = self._known.get(store) if store is not None else None
        found = self._sessions.get(name) if name is not None else None
        return None if found is None or found.watchdog.has_ended else found

    def _known_name(self, base: Any) -> str:
        """Return the token of a store that a living session has for another group; empty if there is none."""
        with self._lock:
            living = (name for other, name in self._known.items() if below(other) is base and self._living(other))
            return next(living, "")

    def _is_left(self, name: str) -> bool:
        """Whether no group has the store with that token any more."""
        with self._lock:
            return name not in self._known.values()

    def _forget_ended(self) -> None:
        """Hold no connection to a store that nobody needs."""
        with self._lock:
            needed = set(self._known.values())
            for name, session in list(self._sessions.items()):
                if session.watchdog.has_ended or not (session.watchdog.has_begun or name in needed):
                    del self._sessions[name]
                    session.workers.end_idle()  # a group that is gone may still hold them
