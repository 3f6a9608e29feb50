"""The scopes that a process remembers of communicators that torch did not make."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracehook.symmetric_memory import public, state


class _Ended:
    """A communicator that ended; while somebody asks about it, another thread makes a scope of another one."""

    def lives(self) -> bool:
        state.scopes_of_others[object(), False, ()] = SimpleNamespace(), _Living()  # type: ignore[assignment]
        return False


class _Living:
    """One that has not ended."""

    def lives(self) -> bool:
        return True


def test_another_thread_makes_a_scope_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """To forget scopes of communicators that ended does not mind that another thread makes scopes."""
    made: Any = SimpleNamespace()
    memory = SimpleNamespace(chosen=lambda *_: (_Living(),), scope=lambda *_: made)
    monkeypatch.setattr(state, "memory", lambda: memory)
    known: dict[object, object] = {(1, False, ()): (made, _Ended())}
    monkeypatch.setattr(state, "scopes_of_others", known)
    monkeypatch.setattr(public, "scopes_of_others", known)
    assert public._scope_of(None, 4096, False, (None, None, None)) is made
    assert (1, False, ()) not in known
    assert (4096, False, (None, None, None)) in known
