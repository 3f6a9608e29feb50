"""Watches window registrations that do not come back: they wait for all ranks, and NCCL gives them no deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tracehook.hook import background
from tracehook.log import clock, threads
from tracehook.log.stderr import warn


class StallWatch:
    """Calls `report(subject)` on a thread of its own when something under `watching` takes too long.

    Once for each. `limit` is in seconds. The thread begins with the first use, and never keeps the process alive.
    """

    def __init__(self, limit: float, report: Callable[[Any], None]) -> None:
        self._limit = limit
        self._report = report
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._running: dict[object, tuple[Any, float]] = {}
        self._thread: threads.Thread | None = None
        self._is_over = False

    @contextlib.contextmanager
    def watching(self, subject: Any) -> Iterator[None]:
        """Watch the body of a ``with`` statement."""
        token = object()
        with self._lock:
            self._running[token] = (subject, clock.monotonic())
            if self._thread is None:
                self._thread = background.start(self, self._run, "tracehook-stall")
            self._changed.notify()
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(token, None)

    def end_soon(self) -> None:
        """At exit: watch no more."""
        with self._lock:
            self._is_over = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_over:
                    return
                wait = self._until_next()
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                token = min(self._running, key=lambda key: self._running[key][1])
                subject, _ = self._running.pop(token)
            try:
                self._report(subject)
            except Exception as problem:  # what it tried failed; the next one is watched all the same
                warn(f"handling a window registration that hangs failed: {problem}")

    def _until_next(self) -> float | None:
        """Seconds until the oldest is late; None while there is nothing to watch."""
        if not self._running:
            return None
        return min(since for _, since in self._running.values()) + self._limit - clock.monotonic()
