"""The threads that tracehook starts in a process, and their common end: before the interpreter's.

At exit this module asks every thread to end, and waits for it. After that it starts no thread, because nothing would
end that one. The service ends the threads of the log itself, later: so the log has what these threads still tell.

A thread that is inside C++ for longer (torch needs up to eleven seconds to find out that a store is gone) comes back
when there is no interpreter. Python would end the process with SIGABRT then. See cpp/bindings/thread_end.cpp.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tracehook.log import clock, threads

END = 5.0  # seconds that the exit waits for all threads together


class Worker(Protocol):
    """What has threads."""

    def end_soon(self) -> None:
        """Let the threads return as soon as they can. At exit, on the thread that ends; does not wait."""


class _Background:
    """The threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for moments; nothing is taken under it
        self._workers: weakref.WeakKeyDictionary[threads.Thread, weakref.ref[Worker]] = weakref.WeakKeyDictionary()
        self._is_over = False

    def start(self, worker: Worker, run: Callable[..., None], name: str, *arguments: Any) -> threads.Thread | None:
        thread = threads.Thread(run, name, *arguments)
        with self._lock:
            if self._is_over:
                return None
            try:
                thread.start()
            except RuntimeError:  # since Python 3.12 this is so before the first exit function runs
                return None
            self._workers[thread] = weakref.ref(worker)
        return thread

    def end(self) -> None:
        deadline = clock.monotonic() + END
        with self._lock:
            self._is_over = True
            running = [(thread, worker) for thread, worker in self._workers.items() if thread.is_alive()]
        for worker in {found for _, reference in running if (found := reference()) is not None}:
            with contextlib.suppress(Exception):  # the others are to end too, and the log is to be closed
                worker.end_soon()
        for thread, _ in running:
            thread.join(max(0.0, deadline - clock.monotonic()))


class _Current:
    threads = _Background()


def start(worker: Worker, run: Callable[..., None], name: str, *arguments: Any) -> threads.Thread | None:
    """Start a thread of `worker`, which never keeps the process alive; None if none can begin any more."""
    return _Current.threads.start(worker, run, name, *arguments)


def end() -> None:
    """End all threads, and let none begin. At exit; a second call finds nothing to do."""
    _Current.threads.end()


def _forget() -> None:
    """In a forked child: the threads are the parent's, and maybe a lock that one of them held."""
    _Current.threads = _Background()


os.register_at_fork(after_in_child=_forget)
atexit.register(end)
