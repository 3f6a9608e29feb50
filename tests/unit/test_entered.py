"""A scope ends whatever a signal's handler raises at its edges."""

import _thread
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from tracehook.symmetric_memory.pool_scope import Scope


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def raising_handler() -> Iterator[None]:
    """Let SIGUSR1 raise. `_thread.interrupt_main` makes it pending, and the interpreter runs the handler soon."""

    def handler(*_: object) -> None:
        raise Alarm

    previous = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, previous)


def scope_of(held: list[int], begin: Any, graph: Any = False, finished: list[Any] | None = None) -> Scope:
    """Return a scope whose native part is entered by `begin`, and empties `held` when it is left."""
    told = finished if finished is not None else []
    return Scope(begin, held.clear, held.clear, lambda *given: told.append(given), graph, ())


def run(scope: Scope, look_up: Mapping[int, object]) -> None:
    """Enter and leave a scope, and go on. To look something up is a step in which no handler runs."""
    with scope:
        look_up[0]
    for _ in range(1000):
        pass


def test_a_signal_that_comes_while_a_scope_begins_does_not_leave_it_open() -> None:
    """The handler raises in the program, inside the scope or behind it."""
    held = [1]
    with pytest.raises(Alarm):
        run(scope_of(held, _thread.interrupt_main, signal.SIGUSR1), {0: None})
    assert held == []


def test_a_signal_that_comes_before_a_scope_ends_does_not_leave_it_open() -> None:
    """Nothing between the last step of the body and the end of the scope runs a handler."""
    held = [1]
    with pytest.raises(Alarm):
        run(scope_of(held, bool), defaultdict(partial(_thread.interrupt_main, signal.SIGUSR1)))
    assert held == []


def test_the_end_is_told_what_was_touched_and_what_was_raised() -> None:
    """Nothing is told if there is neither."""
    told: list[Any] = []
    with scope_of([1], bool, finished=told):
        pass
    assert told == []
    failure = ValueError("of the body")
    with pytest.raises(ValueError, match="of the body"), scope_of([1], bool, finished=told):
        raise failure
    assert told == [(None, failure)]
    with Scope(bool, lambda: [3], bool, lambda *given: told.append(given), False, ()):
        pass
    assert told[1:] == [([3], None)]


def test_a_wrong_end_is_told_and_raised() -> None:
    """The others must not wait for its registrations."""
    told: list[Any] = []

    def refuse() -> list[int]:
        raise RuntimeError("out of order")

    wrong = Scope(bool, refuse, bool, lambda *given: told.append(given), False, ())
    with pytest.raises(RuntimeError, match="out of order") as raised, wrong:
        pass
    assert told == [(None, raised.value)]
    told.clear()
    with pytest.raises(RuntimeError, match="out of order"), wrong:
        raise ValueError
    assert isinstance(told[0][1], ValueError)


def test_a_scope_that_was_not_initialised_says_so() -> None:
    """Instead of a crash."""
    with pytest.raises(RuntimeError, match="not initialised"), Scope.__new__(Scope):
        pass
