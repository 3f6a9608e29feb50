"""What `status()` says of windows: each communicator once."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tracehook import _core
from tracehook.symmetric_memory import memory
from tracehook.symmetric_memory.pools import OpenScope, Pools


def windows_of(name: str, communicator: int | None) -> SimpleNamespace:
    """Return the windows of a group: one window of 2 MiB, if it has a communicator."""
    window = {"size": 2 << 20, "pinned": 0}
    found = SimpleNamespace(id=communicator, dead=False, windows=lambda: [window]) if communicator else None
    return SimpleNamespace(facts=SimpleNamespace(name=name), known=found, deferred=(), refused=None)


def test_a_communicator_that_was_asked_of_before_its_group_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has the row. Groups that have no communicator yet have one each."""
    monkeypatch.setattr(_core, "pool_segments", list)
    rows = [windows_of("tp", 7), windows_of("dp", None), windows_of("pp", None), windows_of("00ff", 7)]
    process: Any = SimpleNamespace(_all=lambda: rows, open_scopes=list)
    said = memory.SymmetricMemory.status(process)
    assert [(row["group"], row["windows"]) for row in said["windows"]] == [("tp", 1), ("dp", 0), ("pp", 0)]


def test_a_signal_that_comes_while_a_pool_is_made_may_ask_for_the_status() -> None:
    """Its handler runs on the thread that holds the lock."""
    pools: Any = SimpleNamespace(_pairs={}, _owners=[], _lock=threading.Lock())
    told: list[list[OpenScope]] = []

    def ask() -> None:
        with pools._lock:
            told.append(Pools.open_scopes(pools))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert told == [[]]
