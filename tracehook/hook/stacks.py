"""The stacks of this process's threads, beside its log: a native thread writes them (cpp/bindings/stacks.cpp)."""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path
from types import ModuleType

from tracehook.log.file_name import above_streams, stacks_of
from tracehook.log.stderr import warn

SILENCE = 30.0  # seconds in which the log's thread did not run


def begin(core: ModuleType, log: Path, silence: float = SILENCE) -> None:
    """Write the stacks whenever somebody asks, from now on, or nobody gets the GIL for `silence`. No file before."""
    try:
        buffer = above_streams(os.memfd_create("tracehook-stacks"))
    except OSError as problem:
        warn(f"this process can write no stacks: no file in memory ({problem.strerror})")
        return

    def register(number: int) -> None:
        faulthandler.unregister(number)  # in a forked child the parent's is still there
        faulthandler.register(number, buffer, all_threads=True)

    if not core.watch_stacks(os.fsencode(stacks_of(log)), buffer, threading.main_thread().ident, silence, register):
        os.close(buffer)
        warn("this process can write no stacks: faulthandler gave no handler, or no thread could begin")
