"""What `status()` says of windows: each communicator once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracehook.symmetric_memory import memory


def windows_of(name: str, communicator: int | None) -> SimpleNamespace:
    """Return the windows of a group: one window of 2 MiB, if it has a communicator."""
    window = {"size": 2 << 20, "pinned": 0}
    found = SimpleNamespace(id=communicator, dead=False, windows=lambda: [window]) if communicator else None
    return SimpleNamespace(facts=SimpleNamespace(name=name), known=found, deferred=(), refused=None)


def test_a_communicator_that_was_asked_of_before_its_group_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has the row. Groups that have no communicator yet have one each."""
    monkeypatch.setattr(memory._core, "pool_segments", list)
    rows = [windows_of("tp", 7), windows_of("dp", None), windows_of("pp", None), windows_of("00ff", 7)]
    process = SimpleNamespace(_all=lambda: rows, open_scopes=list)
    said = memory.SymmetricMemory.status(process)
    assert [(row["group"], row["windows"]) for row in said["windows"]] == [("tp", 1), ("dp", 0), ("pp", 0)]
