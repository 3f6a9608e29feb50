"""The number that stands for this process in messages and in the log."""

from __future__ import annotations

import os
import secrets

# With the pid that it belongs to: a forked child makes its own at the first request.
_life: tuple[int, int] = (0, 0)


def own_life() -> int:
    """Return a random number, the same at each call. A pid cannot stand for a process: the system uses it again."""
    global _life
    if _life[0] != os.getpid():
        _life = (os.getpid(), secrets.randbits(63) | 1)
    return _life[1]
