"""This host: its name, and which of the processes that wrote logs run on it."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from typing import Final

from tracehook.log.file import began_of
from tracehook.log.lines import Event, whole_number
from tracehook.log.text import encodable

_CLOCK_STEP: Final = timedelta(minutes=1)  # how far the wall clock may have been set since a log began


def own_host() -> str:
    """Return the name of this host, as logs have it."""
    return encodable(socket.gethostname())


def lives(begin: Event) -> bool:
    """Whether the process of a log that begins so, and has no end, runs on this host.

    Its number may be another's by now. Without psutil (extra ``audit``) nobody can tell, and it counts as running.
    """
    try:
        import psutil
    except ImportError:
        return True
    pid = whole_number(begin.get("pid"), 1 << 31)
    if pid is None or begin.get("host") != own_host():
        return False
    try:
        if not psutil.pid_exists(pid):  # os.kill would find threads, too
            return False
        created = datetime.fromtimestamp(psutil.Process(pid).create_time(), UTC).replace(tzinfo=None)
    except (psutil.Error, ValueError, OverflowError):
        return False
    began = began_of(begin)
    return began is None or created <= began + _CLOCK_STEP
