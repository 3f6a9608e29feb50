"""Connections to a store of their own: whoever made the store may end it."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tracehook.agreement.store_session import StoreSessions
from tracehook.agreement.store_worker import StoreWorkers
from tracehook.agreement.watchdog import TICK, Watchdog
from tracehook.hook.groups import cloned_store
from tracehook.log import threads

LONG = 120.0  # seconds for which torch tries to reach a store
SOON = LONG / 4
SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class _Server:
    """A store in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self.store = dist.TCPStore(
            "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LONG)
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Broken:
    """A connection that is broken; a copy of it is perhaps not."""

    def __init__(self, *copies: Any) -> None:
        self._copies = list(copies)

    def clone(self) -> Any:
        return self._copies.pop(0)

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError(f"{keys}: _Broken pipe")

    def compare_set(self, key: str, _: str, __: str) -> bytes:
        raise RuntimeError(f"{key}: _Broken pipe")


@pytest.fixture
def server() -> Iterator[_Server]:
    """Return a store that a test can end."""
    made = _Server()
    yield made
    made.kill()


def test_a_store_that_has_ended_is_not_waited_for(server):
    """A process that wants a connection then, such as one that ends, has its error at once."""
    own = cloned_store(server.store)
    assert own.add("calls", 1) == server.store.add("calls", 0) == 1
    server.kill()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"no store is at 127.0.0.1:\d+"):
        cloned_store(server.store)
    assert time.monotonic() - began < SOON


def test_sockets_of_python_that_the_program_has_taken_away_matter_to_nobody(server, monkeypatch):
    """Torch has connections of its own; tests of programs refuse those of Python, with an error of any class."""

    def refuse(*_: object, **__: object) -> None:
        raise LookupError("no connections here")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert cloned_store(server.store).add("calls", 1) == 1


def test_a_store_that_ends_while_it_is_reached_is_not_waited_for(server):
    """Its port still answered when tracehook looked, and no longer when torch connects."""
    own = StoreSessions().at(server.store).workers.store
    assert own is not None
    server.kill()
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", server.store.port))
        port.listen()

        def answer_once() -> None:
            port.accept()[0].close()
            port.close()

        last = threading.Thread(target=answer_once)
        last.start()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"no store is at 127.0.0.1:\d+"):
            cloned_store(own, LONG)
        last.join(SOON)
    assert time.monotonic() - began < SOON


def test_a_counter_survives_a_broken_connection():
    """A connection to a store that was broken once stays so, while the store lives."""
    store = dist.HashStore()
    workers = StoreWorkers(_Broken(_Broken(), store))
    assert [workers.count("born", SOON), workers.count("born", SOON)] == [1, 2]


def test_a_store_that_ends_before_the_first_look_is_left_in_silence(server, capfd):
    """Rank 0 has the store, destroys its groups as all do, and ends; at a broken connection torch writes a warning."""
    session = StoreSessions().at(server.store)
    server.kill()
    del server.store
    session.watchdog.watch("key", SimpleNamespace(is_over=lambda: True))
    thread = session.watchdog._thread
    assert thread is not None
    thread.join(SOON)
    assert session.watchdog.has_ended
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("outlives", [False, True])
def test_keys_are_taken_back_only_where_the_store_outlives_its_groups(server, monkeypatch, outlives):
    """The store of torchrun's agent does. Any other one ends with its rank, perhaps while it is asked."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(outlives))
    session = StoreSessions().at(server.store)
    ended: list[object] = []
    del server.store
    session.watchdog.watch("key", SimpleNamespace(is_over=lambda: True, end=ended.append))
    thread = session.watchdog._thread
    assert thread is not None
    thread.join(SOON)
    assert session.watchdog.has_ended
    assert len(ended) == outlives


def test_the_watch_of_a_store_that_has_ended_ends_at_once(server):
    """It tries again and again to reach the store, and the exit does not wait for that."""
    watch = Watchdog(server.store.clone())
    watch.start()
    time.sleep(2 * TICK)
    server.kill()
    time.sleep(8 * TICK)  # it has noticed
    thread, began = watch._thread, time.monotonic()
    assert thread is not None
    watch._over.set()
    thread.join(LONG)
    assert time.monotonic() - began < SOON


def test_a_store_that_no_group_has_any_more_keeps_no_thread(tmp_path: Path) -> None:
    """A program may make its default group anew again and again, and what is left of a group holds its session."""
    sessions, left = StoreSessions(), []
    before = _agreeing()
    for number in range(5):
        store = dist.FileStore(str(tmp_path / str(number)), 1)
        session = sessions.at(store)
        assert session.workers.count("made", SOON) == 1
        left.append(session)
        del store
    sessions.at(dist.HashStore())
    end = time.monotonic() + SOON
    while _agreeing() - before and time.monotonic() < end:
        time.sleep(TICK / 10)
    assert _agreeing() <= before  # those of other tests may end meanwhile
    assert left[0].workers.count("made", SOON) == 2  # and it would go on


def _agreeing() -> set[threads.Thread]:
    return {thread for thread in threads.living() if thread.name == "tracehook-agreement"}
