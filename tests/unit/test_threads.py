"""Threads that only tracehook knows: how they begin and end, and what the program sees of them."""

import _thread
import os
import threading
import time
from unittest.mock import Mock

import pytest

from tracehook.log import threads


def _wait_for(over: threading.Event) -> None:
    over.wait()


def test_the_program_finds_no_such_thread():
    """Neither in what `threading` lists, nor in what it counts; nor does it profile what runs in one."""
    before, followed, over = threading.enumerate(), [], threading.Event()
    threading.setprofile(lambda *_: followed.append(threading.get_ident()))
    try:
        thread = threads.Thread(_wait_for, "tracehook-waits", over)
        thread.start()
        assert threading.enumerate() == before
        assert (thread.is_alive(), thread in threads.living()) == (True, True)
    finally:
        threading.setprofile(None)
        over.set()
    thread.join()
    assert (thread.is_alive(), thread in threads.living(), followed) == (False, False, [])


def test_a_join_ends_with_the_thread_or_with_its_time():
    """Before the start and after the end there is nothing to wait for."""
    over, done = threading.Event(), []
    thread = threads.Thread(lambda: done.append(over.wait()), "tracehook-waits")
    thread.join()
    thread.start()
    thread.join(0.01)
    assert (thread.is_alive(), done) == (True, [])
    over.set()
    thread.join()
    assert (thread.is_alive(), done) == (False, [True])
    thread.join()


def test_a_thread_knows_itself():
    """A thread that flushes its own log must not wait for itself."""
    said: list[bool] = []
    thread = threads.Thread(lambda: said.append(thread.is_current()), "tracehook-asks")
    thread.start()
    thread.join()
    assert (said, thread.is_current()) == ([True], False)


def test_in_a_forked_child_it_has_ended():
    """The thread is the parent's: the child does not wait for it."""
    over = threading.Event()
    thread = threads.Thread(_wait_for, "tracehook-waits", over)
    thread.start()
    pid = os.fork()
    if pid == 0:
        thread.join()
        os._exit(thread.is_alive() or len(threads.living()))
    _, status = os.waitpid(pid, 0)
    over.set()
    thread.join()
    assert status == 0


@pytest.mark.parametrize("problem", [RuntimeError("can't start new thread"), KeyError("an audit hook")])
def test_a_thread_that_could_not_begin_is_waited_for_by_nobody(monkeypatch, problem):
    """The system may have no room, an audit hook may raise what it likes: the error passes, and nothing is alive."""
    monkeypatch.setattr(_thread, "start_new_thread", Mock(side_effect=problem))
    thread = threads.Thread(time.sleep, "tracehook-sleeps", 0)
    with pytest.raises(type(problem)):
        thread.start()
    assert (thread.is_alive(), thread in threads.living()) == (False, False)
    thread.join()
