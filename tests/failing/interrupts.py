"""A signal comes while the main thread is at a chosen line of tracehook: its handler raises, as that of Ctrl-C does.

Python calls a handler where it looks for signals: where a function begins, a loop turns, or a call has returned. So the
exception comes at the first such place after the line.
"""

import ctypes
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import tracehook

HOME = str(Path(tracehook.__file__).parent)

# What a trace function of Python did last would be such a place. This is one of C, which notes a signal alone.
_note_signal = ctypes.pythonapi.PyErr_SetInterrupt
_note_signal.argtypes = [ctypes.py_object] * 3
_note_signal.restype = None


class Interrupted(KeyboardInterrupt):
    """Raised by the handler."""


class Lines:
    """Counts the different lines and functions that the main thread reaches, and interrupts it at one of them."""

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal  # 0: only count
        self._seen: set[tuple[str, int, str]] = set()
        self._line = ""  # the one that was chosen, once it is reached
        self.interrupted = ""  # where, once it was

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._seen)

    def __enter__(self) -> None:
        """Begin, on the main thread."""
        self._before = signal.signal(signal.SIGINT, self._raise)
        sys.unraisablehook = self._lose
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        """End."""
        sys.settrace(None)
        sys.unraisablehook = sys.__unraisablehook__
        signal.signal(signal.SIGINT, self._before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._look(frame, event, None) if frame.f_code.co_filename.startswith(HOME) else None

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        place = frame.f_code.co_filename.removeprefix(HOME), frame.f_lineno, event
        if event in ("call", "line") and place not in self._seen:
            self._seen.add(place)
            if len(self._seen) == self._ordinal:
                self._line = f"{place[0]}:{place[1]} ({event})"
                return self._arm(frame)
        return self._look

    def _arm(self, frame: FrameType) -> Any:
        """Have the signal noted at the next line of the frame. In no caller a trace function of Python comes first."""
        caller = frame.f_back
        while caller is not None:
            caller.f_trace = None
            caller = caller.f_back
        return _note_signal

    def _lose(self, unraisable: Any) -> None:
        """Nothing can be raised from where an object is destroyed, whoever interrupts that."""
        if isinstance(unraisable.exc_value, Interrupted):
            self.interrupted = ""
        else:
            sys.__unraisablehook__(unraisable)

    def _raise(self, *_: Any) -> None:
        sys.settrace(None)
        if not self.interrupted:
            self.interrupted = self._line
            raise Interrupted(self._line)
