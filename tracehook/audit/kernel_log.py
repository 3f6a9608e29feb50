"""What the kernel of this host logged of processes that failed: no memory was left for them, or a GPU had an error.

Read when there is such a finding, so a job that is well costs nothing, and only of logs of this host since its last
start. The driver of NVIDIA reports errors of a GPU as Xid, often without the process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tracehook.audit.finding import Finding
from tracehook.audit.store import Store
from tracehook.log.folders import own_host
from tracehook.log.text import printable

FILE = Path("/dev/kmsg")
_RULES: Final = ("rank-failed", "ended-by-exception", "rank-missing")
_TOLD: Final = re.compile(r"\b[Oo]ut of memory: Killed process (?P<killed>\d+) |^NVRM: Xid (?:.* pid=(?P<user>\d+))?")
_RECORD: Final = re.compile(r"^\d+,\d+,(\d{1,18}),[^;]*;(.*)$", re.MULTILINE)
_FIRST_PROCESSES: Final = "pid:[4026531836]"  # the kernel's constant
_MINUTE: Final = 60_000_000_000
_LONG_AGO: Final = 60 * _MINUTE  # before the end of a process, what the kernel says of no process is not of its end
_LONGEST: Final = 160  # characters


def quote(store: Store, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those of processes that failed also say what the kernel logged of them, the last line."""
    failed = {finding.process for finding in findings if finding.rule in _RULES}
    rows = store.rows("SELECT *, epoch_us(began) AS began_us FROM process") if failed and sees_all_processes() else []
    rows = [row for row in rows if row["process"] in failed and row["host"] == own_host() and _is_of_this_start(row)]
    logged = list(records()) if rows else []
    said = {row["process"]: text for row in rows if (text := _said(row, logged))}
    return [
        replace(finding, message=f"{finding.message}; the kernel's log says: {said[finding.process]}")
        if finding.rule in _RULES and finding.process in said
        else finding
        for finding in findings
    ]


def sees_all_processes() -> bool:
    """Whether processes have the numbers here that the kernel calls them by: not so in a container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PROCESSES
    except OSError:
        return False


def _is_of_this_start(row: dict[str, Any]) -> bool:
    if row["began_us"] is None or row["began_ns"] is None:
        return False
    epoch_ns = time.time_ns() - time.monotonic_ns()
    return bool(abs(row["began_us"] * 1000 - row["began_ns"] - epoch_ns) < _MINUTE)


def records() -> Iterator[tuple[int, str]]:
    """Yield the lines of the kernel's log that we may read: nanoseconds since the start of the host, and the text."""
    try:
        file = os.open(FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    text = bytearray()
    try:
        while piece := _piece(file):
            text += piece
    except OSError:
        pass  # there is no more
    finally:
        os.close(file)
    for record in _RECORD.finditer(text.decode(errors="replace")):
        yield int(record[1]) * 1000, record[2]


def _piece(file: int) -> bytes:
    while True:
        try:
            return os.read(file, 1 << 16)
        except BrokenPipeError:  # the kernel has overwritten what was next
            continue


def _said(row: dict[str, Any], logged: Sequence[tuple[int, str]]) -> str:
    """Return the last line about a process while it lived; empty if there is none."""
    alive_ns = (row["alive_ns"] or 0) - row["shift_ns"]
    for at, message in reversed(logged):
        if (found := _TOLD.search(message)) and row["began_ns"] - _MINUTE < at < alive_ns + _MINUTE:
            pid = found["killed"] or found["user"]
            if pid == str(row["pid"]) or (pid is None and at > alive_ns - _LONG_AGO):
                return printable(message, _LONGEST)
    return ""
