"""Which broken rules are consequences of a failure that came before, on the same rank or on another one.

The emulated NCCL marks what follows from a failure in the same process. Here stands what only who sees all ranks knows:

* a window that could not be made on one rank: the others wait for it in vain (W1), and then their communicator has
  failed (W12), or their operations are symmetric on some ranks only (W16);
* an exception that ended a rank: its clean-up ends communicators and memory in any order, and the other ranks wait for
  it in vain (W1, W18).

L7, buffers that are registered on some ranks only, and L8, buffers whose registration some ranks only use, are no
consequences of a failed registration: who registers has to answer for that.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracehook.log import reader
from tracehook.log.lines import LogError

_OF_A_WINDOW = ("W1", "W12", "W16")
_OF_A_CLEAN_UP = ("C4", "C5", "C8", "L4", "L5", "W13", "W17", "W19")
_OF_AN_ABSENCE = ("W1", "W18")


@dataclass(frozen=True)
class Failure:
    """What went wrong before. `comm`: key of the communicator, empty for an exception."""

    t_ns: int
    pid: int
    comm: str
    why: str

    def leads_to(self, row: dict[str, Any]) -> bool:
        """Return whether breaking this rule followed."""
        if self.t_ns >= row["t_ns"]:
            return False
        if self.comm:
            return bool(row["comm"] == self.comm and row["rule"] in _OF_A_WINDOW)
        return row["rule"] in (_OF_A_CLEAN_UP if row["pid"] == self.pid else _OF_AN_ABSENCE)


def failed_windows(scratch: Path) -> list[Failure]:
    """Return the windows that could not be made, as the processes of a rehearsal left them in `scratch`."""
    rows = []
    for path in scratch.glob("failures.*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # its process was killed while it wrote
                rows.append(json.loads(line))
    return [Failure(row["t_ns"], row["pid"], row["comm"], row["why"]) for row in rows]


def exceptions(directory: Path) -> list[Failure]:
    """Return the exceptions that ended processes, of all logs in `directory`; none if they cannot be read."""
    try:
        logs = reader.read_directory(directory)
    except (LogError, OSError):
        return []
    return [
        Failure(event["t_ns"], log.begin["pid"], "", f"{event.get('exception', 'an exception')} on {_name(log)}")
        for log in logs
        for event in log.events
        if event["event"] == "python.exception"
    ]


def _name(log: reader.ProcessLog) -> str:
    return f"rank {log.rank}" if log.rank is not None else f"pid {log.begin['pid']}"


def mark(broken: Iterable[dict[str, Any]], failures: Sequence[Failure]) -> None:
    """Say in each row what it is a consequence of: the earliest failure that leads to it."""
    for row in broken:
        if "t_ns" not in row or row["consequence_of"]:
            continue
        first = min((each for each in failures if each.leads_to(row)), key=lambda each: each.t_ns, default=None)
        row["consequence_of"] = first.why if first is not None else ""


def is_own(row: dict[str, Any]) -> bool:
    """Return whether a broken rule is no consequence."""
    return not row.get("consequence_of")
