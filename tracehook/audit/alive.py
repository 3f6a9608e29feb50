"""Whether the process of a log still runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tracehook.log.file import LogFile, began_of
from tracehook.log.folders import own_host
from tracehook.log.lines import Event, whole_number

_ALIVE_FOR: Final = 5.0  # seconds since a process of another host last looked at its ring
_CLOCK_STEP: Final = timedelta(minutes=1)  # how far the wall clock may have been set since a log began, or drifts


def lives(begin: Event, epoch_ns: int = 0) -> bool:
    """Whether the process of a log that begins so, and has no end, runs on this host.

    Its number may be another's by now: psutil (extra ``audit``) tells, and without it the number alone counts.
    `epoch_ns`: the wall clock minus the monotonic one when the process was last alive, as its ring has it. If that is
    the same now, the host has not started anew since, and the monotonic clock tells, whoever set the other one.
    """
    pid = whole_number(begin.get("pid"), 1 << 31)
    if pid is None or begin.get("host") != own_host():
        return False
    try:
        import psutil
    except ImportError:
        return Path(f"/proc/{pid}").exists()
    try:
        if not psutil.pid_exists(pid):  # os.kill would find threads, too
            return False
        created = datetime.fromtimestamp(psutil.Process(pid).create_time(), UTC).replace(tzinfo=None)
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
    except (psutil.Error, ValueError, OverflowError):
        return False
    began = began_of(begin)
    if began is None or created <= began + _CLOCK_STEP:
        return True
    epoch = timedelta(microseconds=(time.time_ns() - time.monotonic_ns()) // 1000)
    is_same = abs(epoch - timedelta(microseconds=epoch_ns // 1000)) < _CLOCK_STEP
    since_boot = timedelta(microseconds=(whole_number(begin.get("t_ns")) or 0) // 1000)
    return is_same and created - datetime(1970, 1, 1) <= epoch + since_boot + _CLOCK_STEP


def still_runs(log: LogFile) -> bool:
    """Whether the process of this log runs now: as the host says, or as the ring of a process of another host does."""
    ring = log.left.header if log.left is not None else None
    if log.ended or (ring is not None and ring.signal):
        return False
    if log.begin.get("host") == own_host():
        return lives(log.begin, ring.epoch_ns if ring is not None else 0)
    return ring is not None and time.time() - (ring.epoch_ns + ring.looked_ns) / 1e9 < _ALIVE_FOR
