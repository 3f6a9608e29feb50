"""What a process has once, it has once, however many threads ask for it first."""

import os
import threading
import time
from ast import literal_eval
from collections.abc import Callable
from typing import Any

import pytest

from tracehook.agreement import store_session
from tracehook.hook.once import Once
from tracehook.ipc import events
from tracehook.log import stderr
from tracehook.symmetric_memory import state

THREADS = 8


def together(ask: Callable[[], Any]) -> list[Any]:
    """Return what each of some threads gets that ask at the same moment."""
    gate, found = threading.Barrier(THREADS), []

    def work() -> None:
        gate.wait()
        found.append(ask())

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == THREADS
    return found


def slow() -> object:
    """Make something; other threads run meanwhile."""
    time.sleep(0.05)
    return object()


def test_a_value() -> None:
    """It is made by one thread, and the others wait for it."""
    assert len({id(each) for each in together(Once(slow))}) == 1


def test_a_value_that_could_not_be_made_is_made_at_the_next_call() -> None:
    """The exception is the first caller's."""
    left = [OSError("no")]

    def make() -> int:
        while left:
            raise left.pop()
        return 7

    once = Once(make)
    with pytest.raises(OSError, match="no"):
        once()
    assert (once.is_made, once(), once.is_made) == (False, 7, True)


def test_the_sessions_at_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's thread asks at the birth of a communicator, and the program at its first scope."""
    monkeypatch.setattr(state.Switch, "sessions", None)
    monkeypatch.setattr(store_session, "StoreSessions", lambda *_: slow())
    assert len({id(each) for each in together(state._sessions)}) == 1


def test_the_number_of_a_process_for_its_peers() -> None:
    """Peers know by it which memory of this process they have mapped. A forked child is another process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr({events.own_life() for _ in range(3)}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    (of_child,) = literal_eval(os.read(read, 1000).decode())
    os.close(read)
    assert {*together(events.own_life)} == {events.own_life()} != {of_child}


def test_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line that each thread has cause to say stands on stderr once."""
    text = f"a line of the test {time.monotonic_ns()}"
    assert sorted(together(lambda: stderr.say_once(text))) == [False] * (THREADS - 1) + [True]
    assert capsys.readouterr().err == f"tracehook: {text}\n"
