"""Communicators that are used without their group: their ranks meet at the job's store, as those of a group do.

Most of them torch did not make. A group of torch may stand for one all the same; then messages name it.
"""

from __future__ import annotations

import threading
from typing import Any

from tracehook._core import Communicator
from tracehook.agreement.rank_names import NOBODY, RankNames, of_group
from tracehook.agreement.store_session import StoreSession, StoreSessions
from tracehook.errors import RegistrationError
from tracehook.hook import groups, namer
from tracehook.settings import Settings
from tracehook.symmetric_memory.ranks_follower import key_of
from tracehook.symmetric_memory.stall_watch import StallWatch
from tracehook.symmetric_memory.windows import GroupWindows


class OtherWindows(GroupWindows):
    """The windows of one communicator that is used without a group of torch."""

    is_of_torch = False

    def __init__(
        self,
        communicator: Communicator,
        settings: Settings,
        stalls: StallWatch,
        sessions: StoreSessions,
        session: StoreSession | None,
    ) -> None:
        self._given = communicator
        self._group_name = namer.known(communicator.id)
        name = key_of(communicator)
        facts = groups.GroupFacts(name, communicator.rank, communicator.size, communicator.device, None, None)
        super().__init__(None, settings, stalls, sessions, _nobody, facts, session)
        self._begin(communicator)
        self._communicator = communicator

    def communicator(self) -> Communicator:
        """Return the communicator, which may be dead."""
        return self._given

    def connect(self) -> Communicator:
        """Return the communicator.

        Raises:
            RegistrationError: it has ended.

        """
        if self._given.dead:
            raise RegistrationError(f"{self.about} has ended: make the scope with a communicator that lives", advice="")
        return self._given

    def _session_of_group(self) -> StoreSession | None:
        return self._session if self._session is not None and self.facts.ranks > 1 else super()._session_of_group()

    @property
    def names(self) -> RankNames:
        """Who the ranks are in the job, if a group of torch stands for the communicator."""
        found = self._group_name
        return of_group(found.name, found.desc, self.facts.ranks, found.members) if found is not None else NOBODY

    def _called(self, communicator: Communicator | None) -> str:
        if communicator is not None and self._group_name is not None:
            return super()._called(communicator)
        return f"communicator {key_of(communicator)} ({self.facts.ranks} ranks)" if communicator is not None else "it"


class OtherCommunicators:
    """Those of this process of which something was asked, by their native number. Any thread."""

    def __init__(self, settings: Settings, stalls: StallWatch, sessions: StoreSessions) -> None:
        self._settings = settings
        self._stalls = stalls
        self._sessions = sessions
        self._windows: dict[int, OtherWindows] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> OtherWindows | None:
        """Return the windows of the communicator with this number, if they were asked for before."""
        return self._windows.get(number)

    def living(self) -> list[OtherWindows]:
        """Return those whose communicator lives."""
        return [found for found in list(self._windows.values()) if found.lives()]

    def add(self, communicator: Communicator, session: StoreSession | None = None) -> OtherWindows | None:
        """Return the windows of a communicator; None if its rank or a store for its ranks is not known.

        `session`: where its ranks have asked of it; None: they meet at the job's store.
        """
        if (session is None and groups.job_store() is None) or communicator.rank < 0:
            return None
        with self._lock:
            for number in [number for number, found in self._windows.items() if found.communicator().dead]:
                del self._windows[number]
            found = self._windows.get(communicator.id)
            if found is None:
                found = OtherWindows(communicator, self._settings, self._stalls, self._sessions, session)
                self._windows[communicator.id] = found
            return found


def _nobody(*_: Any) -> None:
    """There is no group to tell, and none to abort."""
