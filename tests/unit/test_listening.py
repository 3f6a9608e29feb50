"""A process hears the alarms at the stores of all of its groups, whenever torch gets to know them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from tracehook.agreement import store_session
from tracehook.agreement.store_session import StoreSessions
from tracehook.log import threads

SOON = 30.0  # seconds


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the stores of the groups of this process: none yet."""
    found: list[Any] = []
    monkeypatch.setattr(store_session, "stores", lambda: found)
    return found


@pytest.fixture
def sessions() -> Iterator[StoreSessions]:
    """Return those of a process; what it has begun ends with the test."""
    made = StoreSessions()
    yield made
    made.end_soon()


def _in_time(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _hears(sessions: StoreSessions, store: Any) -> bool:
    found = sessions.at(store).watchdog
    return _in_time(lambda: found.has_begun)


def _is_looking() -> bool:
    return any(thread.name == "tracehook-listen" for thread in threads.living())


def test_a_communicator_is_born_before_its_group(stores: list[Any], sessions: StoreSessions) -> None:
    """As in init_process_group(device_id=...): torch enters a group, with its store, when it has its communicator."""
    sessions.listen()
    stores.append(dist.HashStore())
    assert _hears(sessions, stores[0])


def test_a_later_group_has_a_store_of_its_own(stores: list[Any], sessions: StoreSessions) -> None:
    """The process hears at the first store already, and is not told of the second one."""
    stores.append(dist.HashStore())
    sessions.listen()
    assert _hears(sessions, stores[0])
    sessions.listen()
    stores.append(dist.HashStore())
    assert _hears(sessions, stores[1])


def test_the_thread_that_looks_for_stores_ends(stores: list[Any], sessions: StoreSessions, monkeypatch: Any) -> None:
    """Also without a group. It costs nothing for the life of the process, and the next communicator begins it again."""
    monkeypatch.setattr(store_session, "_ENTERED_WITHIN", 0.5)
    for _ in range(2):
        sessions.listen()
        assert _is_looking()
        assert _in_time(lambda: not _is_looking())
        stores.append(dist.HashStore())
