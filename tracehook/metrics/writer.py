"""Writes the metrics of this process into a file for node_exporter's textfile collector, and removes old files."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from tracehook.hook.log_begin import why_unusable
from tracehook.log import clock, threads
from tracehook.log.stderr import warn

PERIOD = 15.0  # seconds between two files
_SWEEP = 3600.0  # seconds between two looks for files that nobody writes any more
_PATIENCE = 2.0  # seconds that the end of a process waits for its last file
KEPT = 3600.0  # seconds for which a file stays after the last write
NEW = ".new"  # what the name of a file ends with until it is whole; Prometheus' node_exporter reads only *.prom
_OURS = re.compile(r"tracehook\.[^.]*\.rank[^.]*\.[^.]*\.\d+\.prom(\.new)?")


def remove_stale(own: Path) -> None:
    """Remove the files that nobody has written for an hour, by the clock of the file system that has just got `own`.

    A process that lives writes far more often. Who stood still for so long makes its file anew.
    """
    now = own.stat().st_mtime
    for file in own.parent.iterdir():
        if file != own and _OURS.fullmatch(file.name):
            with contextlib.suppress(OSError):  # another process was faster
                if now - file.lstat().st_mtime > KEPT:
                    file.unlink()


class Writer:
    """A thread that replaces `path` as a whole, again and again.

    It alone touches the directory, whose file server may be dead: no other thread waits for it, and the end of the
    process only for `_PATIENCE`. Whatever fails costs one line on stderr and the numbers, and is tried again.
    """

    def __init__(self, path: Path, render: Callable[[], bytes], period: float = PERIOD) -> None:
        self._path = path
        self._render = render
        self._period = period
        self._is_ending = threading.Event()
        self._has_warned = False
        self._swept: float | None = None
        self._thread = threads.Thread(self._run, "tracehook-metrics")

    def start(self) -> None:
        """Start the thread, whose first file comes at once."""
        self._thread.start()

    def finish(self) -> None:
        """Write the last file, if that does not take long."""
        self._is_ending.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        unusable = why_unusable(self._path.parent)
        if unusable:
            self._warn(f"SYMM_REGISTER_METRICS={unusable}")
        is_last = False
        while not is_last:
            is_last = self._is_ending.is_set()  # before the numbers are taken, so that the last file has the end
            self._write()
            self._is_ending.wait(0 if is_last else self._period)

    def _write(self) -> None:
        try:
            self._replace(self._render())
            now = clock.monotonic()
            if self._swept is None or now - self._swept > _SWEEP:
                self._swept = now
                remove_stale(self._path)
        except Exception as problem:  # the disk, or a fault of ours: the program comes first
            text = getattr(problem, "strerror", None) or f"{type(problem).__name__}: {problem}"
            self._warn(f"{self._path}: {text}")

    def _replace(self, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}{NEW}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"no metrics for now, {text}; the job goes on, and tracehook tries again")
