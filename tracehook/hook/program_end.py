"""How the program ends, as far as Python knows: ``trace.end`` says it, and the ring if there is no such line.

*An exception.* ``sys.excepthook`` is chained, for the moment: a process may hang for long after it, before its end. A
hook that the program sets later may not call ours. So at the end ``sys.last_exc`` decides, which the interpreter sets
before it calls any hook, and which nobody sets who only prints an exception.

*An exit status.* The interpreter tells nobody with which one it ends. ``sys.exit`` is wrapped, and the last call of it
on the main thread counts. The status of a ``raise SystemExit`` stays unknown.

*os._exit.* It is wrapped: one event goes into the ring, which outlives the process. That waits for no other thread
but for one that copies an event. A forked child has no ring; multiprocessing ends such children so.

*os.execv.* So is it, and it leaves the same event: a program that starts itself anew did not fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Never

from tracehook.log.journal import Journal
from tracehook.log.program_files import is_of_program
from tracehook.log.text import encodable

_MOST = 300  # characters of a message
_MOST_CAUSES = 32  # a circle has no end
_OF_NCCL = "\nLast error:\n"  # after it, what NCCL said last
_MOST_LEFT = 150  # in the ring, which has room for 2,048 bytes; escaped, a character is six or twelve
_numbers = itertools.count(1)


class _Followed:
    """Where it is told, and what the program said of its end."""

    core: ModuleType | None = None
    journal: Journal | None = None
    asked: dict[str, Any] | None = None  # by sys.exit
    told = 0  # id of the exception that ends the program: its frames hold what the program holds
    has_hooks = False


def follow(core: ModuleType, journal: Journal) -> None:
    """From now on, tell of the program's end in this log."""
    _Followed.core, _Followed.journal = core, journal
    if not _Followed.has_hooks:
        _Followed.has_hooks = True
        _chain_hooks()
        _wrap_exits()


def forget() -> None:
    """In a forked child: the log is the parent's."""
    _Followed.core = _Followed.journal = _Followed.asked = None


def fields() -> dict[str, Any]:
    """Return what ``trace.end`` says of how the program ends. At interpreter exit."""
    problem = _uncaught()
    if problem is None:
        return {"how": "exit", **(_Followed.asked or {})}
    # Of a KeyboardInterrupt the interpreter ends as if by the signal.
    status = 128 + signal.SIGINT if isinstance(problem, KeyboardInterrupt) else 1
    return {"how": "exception", **_told(problem), "status": status}


def keep_interrupt() -> None:
    """Let Python still end as Control-C ends it. It forgets that when an exit function imports something.

    Last at interpreter exit: what it runs counts as the end of the program.
    """
    if isinstance(_uncaught(), KeyboardInterrupt):
        sys.excepthook = lambda *_: None
        ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")


def _uncaught() -> BaseException | None:
    """Return the exception that ends the program. One of an interactive line, or of a callback from C, does not."""
    problem = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(problem, "__traceback__", None)
    if trace is None or hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    outermost = trace.tb_frame
    room = outermost.f_globals.get("__name__")
    is_program = room == "runpy" or (room == "__main__" and outermost.f_code.co_name == "<module>")
    return problem if is_program else None


def _told(problem: BaseException) -> dict[str, str]:
    first = _first_cause(problem)
    message = _message(problem)
    if first is not problem:
        message = f"{_cut(message, _MOST // 2)} (from {_cut(f'{type(first).__name__}: {_message(first)}', _MOST // 3)})"
    told = {"exception": encodable(type(problem).__name__), "message": encodable(_cut(message, _MOST))}
    if place := _raised_at(first) or _raised_at(problem):
        told |= {"raised_at": encodable(place)}
    return told


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _first_cause(problem: BaseException) -> BaseException:
    """Return the exception that this one was raised from, as ``raise ... from`` says, or itself."""
    for _ in range(_MOST_CAUSES):
        if problem.__cause__ is None:
            break
        problem = problem.__cause__
    return problem


def _message(problem: BaseException) -> str:
    """Return the first line; of torch's errors of NCCL, what NCCL itself said stands before it."""
    try:
        text = str(problem).strip()
    except Exception:  # of the program's own class
        return ""
    first = text.partition("\n")[0]
    said = text.partition(_OF_NCCL)[2].strip().partition("\n")[0]
    return f"{said} ({first})" if said else first


def _raised_at(problem: BaseException) -> str:
    """Return the innermost line of the program in its traceback, such as ``/x/train.py:41 in step``, or nothing."""
    found, trace = "", problem.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_of_program(code.co_filename):
            found = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return found


def _tell(problem: BaseException, **more: str) -> None:
    core, journal = _Followed.core, _Followed.journal
    if core is not None and journal is not None:
        with contextlib.suppress(Exception):  # the program's own hook comes next
            number, texts = next(_numbers), _told(problem) | more
            journal.texts[number] = texts
            if not more:  # a launcher may kill the ranks that are left before the log's thread has written the texts
                core.leave_words(json.dumps(texts | {"message": _cut(texts["message"], _MOST_LEFT)}).encode())
            core.push("thread.exception" if more else "python.exception", texts=number)


def _tell_end(problem: BaseException) -> None:
    if id(problem) != _Followed.told:
        _Followed.told = id(problem)
        _tell(problem)


def _chain_hooks() -> None:
    of_program, of_threads = sys.excepthook, threading.excepthook

    @functools.wraps(of_program)
    def excepthook(*raised: Any) -> None:
        problem = _uncaught()
        if problem is not None and problem is raised[1]:
            _tell_end(problem)
        of_program(*raised)

    @functools.wraps(of_threads)
    def thread_excepthook(raised: threading.ExceptHookArgs) -> None:
        if raised.exc_value is not None and not isinstance(raised.exc_value, SystemExit):
            name = raised.thread.name if raised.thread is not None else ""
            _tell(raised.exc_value, thread_name=encodable(name))
        of_threads(raised)

    # A library may ask whether the program has set a hook: it gets the answer that it would get without us.
    if of_program is sys.__excepthook__:
        sys.__excepthook__ = excepthook
    if of_threads is threading.__excepthook__:
        threading.__excepthook__ = thread_excepthook
    sys.excepthook, threading.excepthook = excepthook, thread_excepthook


def _wrap_exits() -> None:
    sys_exit, os_exit = sys.exit, os._exit

    @functools.wraps(sys_exit)
    def ask_to_exit(status: Any = None, /) -> Never:
        if threading.current_thread() is threading.main_thread():
            _Followed.asked = _asked(status)
        sys_exit(status)

    @functools.wraps(os_exit)
    def exit_now(status: int) -> Never:
        try:
            _tell_left(status & 0xFF)
        finally:  # also if Ctrl-C comes just now
            os_exit(status)

    sys.exit, os._exit = ask_to_exit, exit_now
    os.execv, os.execve = _telling(os.execv), _telling(os.execve)  # all others call these
    os.supports_fd.add(os.execve)
    for wrapped in (exit_now, os.execv, os.execve):
        wrapped.__module__ = "os"  # where pickles look; theirs is posix


def _telling(replace: Callable[..., Never]) -> Callable[..., Never]:
    @functools.wraps(replace)
    def replace_program(path: Any, *more: Any, **named: Any) -> Never:
        with contextlib.suppress(Exception):
            if os.access(path, os.X_OK):  # os.execvp tries many that are not there
                _tell_left(0)
        replace(path, *more, **named)

    return replace_program


def _tell_left(status: int) -> None:
    with contextlib.suppress(Exception):
        if _Followed.core is not None:
            if status and (problem := _uncaught()) is not None:  # a hook of the program, which did not call ours
                _tell_end(problem)
            _Followed.core.push("python.exit", status=status)


def _asked(status: Any) -> dict[str, Any]:
    """Return the exit status that the interpreter makes of it; and what went wrong, if the program caught that."""
    number = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
    caught = sys.exc_info()[1]
    if number and caught is not None:
        return {"status": number} | _told(caught)
    before = _Followed.asked or {}  # multiprocessing catches the SystemExit, and passes its status on
    return before if before.get("status") == number else {"status": number}
