"""Lists the jobs of the tests that `tracehook rehearse` would have ended because ranks hang.

With HANG_ALARMS=SECONDS the rehearsals of the tests are looked at as the command does: ranks hang when they have waited
for each other, or for a rank that has ended, for so many seconds (5 there), or 60 for a rank that computes. An alarm
ends no job here. build/hang-alarms.jsonl lists them; one of a job with status 0 wants a reason, such as a time limit
that ends the wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType

from tracehook.rehearsal.hangs import Standstill, find_hang

SECONDS = float(os.environ.get("HANG_ALARMS", "0"))
_LIMIT = 60.0
_LOOK_SECONDS = 0.2
_LIST = Path(__file__).parents[2] / "build" / "hang-alarms.jsonl"


class Watch(threading.Thread):
    """Looks at the rehearsals whose directories are below `folder`, or at that one, while a `with` statement runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._over = threading.Event()
        self._first: Standstill | None = None
        self._began = time.monotonic()
        self._seconds = 0.0

    def __enter__(self) -> Watch:
        if SECONDS:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if SECONDS:
            self.join()

    def run(self) -> None:
        """Look until it is over, or there is an alarm."""
        while self._first is None and not self._over.wait(_LOOK_SECONDS):
            for scratch in (self._folder, *self._folder.glob("tracehook-rehearsal-*")):
                with contextlib.suppress(OSError):  # it ends meanwhile
                    self._first = self._first or find_hang(scratch, _LIMIT, SECONDS)
        self._seconds = time.monotonic() - self._began

    def note(self, status: int, late: bool) -> None:
        """List the alarm, if there was one, with how the job ended."""
        if self._first is None:
            return
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        told = {"test": test, "status": status, "late": late, "after": self._seconds, "lines": self._first.lines}
        _LIST.parent.mkdir(exist_ok=True)
        with _LIST.open("a") as file:
            file.write(json.dumps(told) + "\n")
