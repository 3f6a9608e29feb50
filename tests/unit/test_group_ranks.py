"""Who the ranks of a communicator are: two threads that ask at once get one pair of sequences of rounds."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tracehook.agreement.store_session import StoreSessions
from tracehook.hook.groups import GroupFacts
from tracehook.settings import Settings
from tracehook.symmetric_memory.ranks import GroupRanks


class Slow(GroupRanks):
    """Ranks whose sequences begin when the test allows it."""

    entered = threading.Event()
    allowed = threading.Event()

    def _begin_sequences(self, found: Any) -> None:
        self.entered.set()
        assert self.allowed.wait(10)
        super()._begin_sequences(found)


class Failing(GroupRanks):
    """Ranks whose sequences cannot begin: the store is gone."""

    def _begin_sequences(self, found: Any) -> None:
        raise RuntimeError(f"the store is gone, which communicator {found.id} needs")


def made(kind: type[GroupRanks], sessions: StoreSessions) -> GroupRanks:
    """Return the ranks of a communicator with one rank, which needs no store."""
    facts = GroupFacts("0", 0, 1, 0, None, None)
    return kind(None, Settings(), sessions, lambda _: None, facts)


@pytest.fixture
def communicator() -> Any:
    """Return what stands for a communicator."""
    return SimpleNamespace(id=7, key=0x1234, dead=False)


def test_who_comes_while_the_sequences_begin_waits_for_them(communicator: Any) -> None:
    """An alarm may make a process know its communicator while its program enters the first scope."""
    sessions = StoreSessions()
    first, second = made(Slow, sessions), made(GroupRanks, sessions)
    threads = [threading.Thread(target=each._begin, args=(communicator,)) for each in (first, second)]
    threads[0].start()
    assert Slow.entered.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    Slow.allowed.set()
    for thread in threads:
        thread.join(10)
    assert first._plans is not None
    assert second._plans is first._plans
    assert second._uses is first._uses


def test_a_beginning_that_failed_is_made_again(communicator: Any) -> None:
    """Who comes next begins the sequences, instead of taking none."""
    sessions = StoreSessions()
    first, second = made(Failing, sessions), made(GroupRanks, sessions)
    with pytest.raises(RuntimeError, match="the store is gone"):
        first._begin(communicator)
    second._begin(communicator)
    assert second._plans is not None


def test_a_fingerprint_that_raised_is_equal_to_none() -> None:
    """Whatever the answers depend on, nobody compared it; also if it raised on all ranks."""
    assert made(GroupRanks, StoreSessions()).compare_policies({"one": "a table"}) == ""
    told = made(GroupRanks, StoreSessions()).compare_policies({"one": "a table", "two": None})
    assert "the fingerprint of policy 'two' raised" in told
