"""Files in shared memory that killed jobs left: a later job removes them, and nothing else.

A file is one of ours only if everything says so: it has a name that we make, it belongs to this user, it begins with
our mark, nobody holds its lock, and nothing has changed in it for ten minutes. A file loses its name soon after a job
has begun to use it, and who comes later than that does without.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import stat
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "tracehook-"
MARK = b"THSHARED"  # the first bytes of each file; cpp/symmetric_memory/host_mailbox.cpp writes them too
LEFT = 600.0  # seconds
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")


@functools.cache
def remove_once() -> None:
    """Remove what killed jobs left, the first time in a process. Never raises."""
    remove()


def remove() -> None:
    """Remove what killed jobs left. Never raises."""
    with contextlib.suppress(OSError):
        for path in SHARED_MEMORY.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):  # it went meanwhile, or somebody uses it
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and os.pread(file, len(MARK), 0) == MARK
        if is_ours and found.st_mtime < time.time() - LEFT:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(path.lstat(), found):
                path.unlink()
    finally:
        os.close(file)
