"""Values that a process makes once, whichever of its threads asks first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Once(Generic[Value]):
    """A function without arguments that makes its value at the first call; threads that call meanwhile wait for it.

    `functools.cache` lets no thread wait, so two threads make two values. If `make` raises, the next call tries again.
    A forked child has the value of its parent.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._lock = threading.RLock()
        self._made: list[Value] = []
        os.register_at_fork(after_in_child=self._forget_lock)

    def __call__(self) -> Value:
        """Return the value."""
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]

    @property
    def is_made(self) -> bool:
        """Whether a call has made the value."""
        return bool(self._made)

    def _forget_lock(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may hold it, and is not here
