"""The threads of tracehook: the program does not find them, and no signal of the program comes to them."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import functools
import os
import signal
from collections.abc import Callable
from typing import Any, Final

# Signals of a fault or an abort of the thread itself: the handlers of the program must get them.
_OWN: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
_STACK = 1 << 20  # bytes at least: a program may ask for less than an import on a thread of ours takes
_living: set[Thread] = set()


class Thread:
    """A thread that `threading` does not know: a program may join all of its threads, count, trace or profile them.

    So what runs in it asks nothing for `threading.current_thread()`, which would enter it there. As with a daemon, the
    interpreter does not wait for it.
    """

    def __init__(self, run: Callable[..., None], name: str, *arguments: Any) -> None:
        self.name = name
        self._run: Callable[[], None] = functools.partial(run, *arguments)
        self._running = _thread.allocate_lock()
        self.native_id = 0  # while it runs: the system's number of it

    def start(self) -> None:
        """Start it. Raises RuntimeError if none can begin.

        A program may block a signal in all of its threads and wait for it in one place. The system would give the
        signal to a thread of ours instead, and then it ends the process.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        stack = _thread.stack_size()  # for all threads that begin; 0: what the system gives
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN)  # raises what a handler raises
            self._running.acquire()
            _living.add(self)
            _thread.stack_size(max(stack, _STACK) if stack else 0)
            _thread.start_new_thread(self._work, ())  # it has the mask of this thread
        except BaseException:  # also what an audit hook of the program raises
            _living.discard(self)
            raise
        finally:
            try:  # of C: where a function of Python begins, a handler may raise
                _signal.pthread_sigmask(signal.SIG_SETMASK, before)
            finally:
                _thread.stack_size(stack)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, `timeout` seconds at most."""
        if self.is_alive() and self._running.acquire(timeout=-1 if timeout is None else timeout):
            self._running.release()

    def is_alive(self) -> bool:
        """Whether it was started and has not ended. In a forked child it has."""
        return self in _living

    def is_current(self) -> bool:
        """Whether it is the thread that asks."""
        return self.native_id == _thread.get_native_id()

    def _work(self) -> None:
        self.native_id = _thread.get_native_id()
        run, self._run = self._run, lambda: None  # what it holds may end with it
        try:
            run()
        finally:
            self.native_id = 0
            _living.discard(self)
            self._running.release()


def living() -> list[Thread]:
    """Return the threads of this process that have not ended."""
    return list(_living)


os.register_at_fork(after_in_child=_living.clear)
