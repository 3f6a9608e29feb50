"""Two threads, or a thread and a fork, come to the same thing at the same moment."""

import os
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tracehook.errors import PeerLost
from tracehook.hook import background
from tracehook.hook.service import Service
from tracehook.integrations.replacing import replace
from tracehook.ipc.exports import Exports
from tracehook.ipc.group import PeerMonitor
from tracehook.ipc.tensor import PeerTensor
from tracehook.log import threads
from tracehook.symmetric_memory import stuck


def test_a_group_of_peers_that_was_closed_closes_nothing_in_a_child() -> None:
    """The system has given the number of its descriptor to a file of the program."""
    monitor = PeerMonitor(SimpleNamespace())  # type: ignore[arg-type]
    number = monitor._wake
    monitor.stop()
    read, write = os.pipe()
    assert number in (read, write)
    monitor.after_fork_in_child()
    monitor.stop()
    monitor.wake()
    os.write(write, b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(write)


def test_nothing_is_lent_to_a_peer_that_ended() -> None:
    """The thread that saw it drops the records of its link: what came after would stay for ever."""
    link = SimpleNamespace(ended="its process has ended", lost_error=lambda: PeerLost("its process has ended", 1))
    loan: Any = SimpleNamespace(export=SimpleNamespace(number=1, loans={}, links=set()), number=2, links=set())
    exports: Any = Exports(lambda *_: False)
    with pytest.raises(PeerLost):
        exports._lend(link, (loan, None), 1.0)
    assert (loan.links, loan.export.links) == (set(), set())


def test_a_tensor_whose_peer_ends_while_it_is_used_raises_that() -> None:
    """What its use keeps here would keep the memory of the peer."""
    loan: Any = SimpleNamespace(gone=None, link=SimpleNamespace(ended=None), error=lambda: PeerLost("gone", 1))

    class Used(PeerTensor):
        def _make(self, _: Any) -> Any:
            loan.gone = "the peer has ended"
            self._drop_cached()
            return "memory"

    tensor: Any = Used.__new__(Used)
    tensor._loan, tensor._raw, tensor._read_only = loan, None, None
    with pytest.raises(PeerLost):
        tensor._usable()
    assert tensor._raw is None


def test_names_are_replaced_while_another_thread_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module that is looked at may come with another one."""
    import sys

    class Holder:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            monkeypatch.setitem(sys.modules, "tracehook_of_a_test_2", ModuleType("tracehook_of_a_test_2"))
            return ModuleType

    module = ModuleType("tracehook_of_a_test_0")
    module.__dict__["act"] = act = object()
    monkeypatch.setitem(sys.modules, "tracehook_of_a_test_1", Holder())
    assert replace(module, {"act": act}) == ["act"]


def test_whoever_enables_second_waits_until_it_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would open scopes beside a hook that is not attached yet."""
    made: Any = Service.__new__(Service)
    made._enabling = threading.RLock()
    done: list[str] = []
    has_begun = threading.Event()

    def enable(_: object) -> None:
        if threading.current_thread().name == "first":
            has_begun.set()
            time.sleep(0.2)
        done.append(threading.current_thread().name)

    monkeypatch.setattr(made, "_enable", enable, raising=False)
    first = threading.Thread(target=made.enable, name="first")
    first.start()
    has_begun.wait()
    made.enable()
    first.join()
    assert done[0] == "first"


def test_a_worker_that_cannot_end_keeps_no_other_from_ending() -> None:
    """At exit: the log is closed after them."""
    ended = threading.Event()

    class Broken:
        def end_soon(self) -> None:
            raise OSError("no such descriptor")

    class Good:
        def end_soon(self) -> None:
            ended.set()

    def wait() -> None:
        ended.wait(5)

    both, running = (Broken(), Good()), background._Background()
    for worker in both:
        assert isinstance(running.start(worker, wait, "of a test"), threads.Thread)
    running.end()
    assert ended.is_set()


def test_each_store_hears_of_a_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, also if two calls hang before the next look."""
    monkeypatch.setattr(stuck, "_core", SimpleNamespace(ask_stacks=lambda: None))
    monkeypatch.setattr(stuck._Told, "count", 0)
    store: Any = None
    one, other = stuck.Stuck(), stuck.Stuck()
    stuck.tell()
    stuck.tell()
    assert [each.step(store) for each in (one, other, one, other)] == [[[]], [[]], [], []]
    stuck.tell()
    assert [each.step(store) for each in (other, one)] == [[[]], [[]]]
