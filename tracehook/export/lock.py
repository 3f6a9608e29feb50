"""One export to a folder at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracehook.log.lines import LogError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. Raises :class:`LogError` if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path.parent}: another process exports to it; wait until it has ended") from None
        yield
    finally:
        os.close(fd)
