"""This host, for an export: its name, which of its processes run, and one export to a folder at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

from tracehook.audit.selection import integer
from tracehook.log.file import LogFile
from tracehook.log.folders import safe
from tracehook.log.lines import LogError
from tracehook.log.text import encodable

_CLOCK_STEP: Final = timedelta(minutes=1)  # how far the wall clock may have been set since a log began


def own_host() -> str:
    """Return the name of this host, as logs have it."""
    return encodable(socket.gethostname())


def name_of_host() -> str:
    """Return the name of this host for the name of a file."""
    return safe(socket.gethostname())


def lives(log: LogFile) -> bool:
    """Whether the process of a log that has no end runs on this host. Its number may be another's by now."""
    pid = integer(log.begin, "pid")
    if pid is None or log.begin.get("host") != own_host():
        return False
    try:
        if not psutil.pid_exists(pid):  # os.kill would find threads, too
            return False
        created = datetime.fromtimestamp(psutil.Process(pid).create_time(), UTC).replace(tzinfo=None)
    except (psutil.Error, ValueError, OverflowError):
        return False
    return log.began is None or created <= log.began + _CLOCK_STEP


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
