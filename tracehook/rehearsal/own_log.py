"""The log of a rehearsal itself: the rules that ranks broke, and the hang that ended the job, for the audit.

Ranks cannot write these events themselves: one that broke a rule may be killed right after, one that hangs will be.
What the emulated NCCL says lies in files that outlive it. When the job has ended, the rehearsal makes one log of it,
beside those of the ranks, as a process of the job that has no rank. A rehearsal in which nothing happened has none.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tracehook import __version__
from tracehook.hook.job import JobId
from tracehook.log.encoding import dumps
from tracehook.log.file_name import make_log
from tracehook.log.folders import own_host
from tracehook.log.journal import SCHEMA
from tracehook.log.text import encodable
from tracehook.rehearsal.hangs import Standstill


def write(directory: Path, job: JobId, broken: Sequence[Mapping[str, Any]], hang: Standstill | None) -> Path | None:
    """Make the log in `directory`; return its path, None if there is nothing to say.

    Args:
        directory: where the ranks' logs are.
        job: their job.
        broken: what :func:`tracehook.rehearsal.emulation.violations` returned.
        hang: what ended the job, if something did.

    Raises OSError.

    """
    events = sorted((*_violations(broken), *_hangs(hang)), key=lambda event: event["t_ns"])
    if not events:
        return None
    path, descriptor = make_log(directory, job.id)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(dumps(event) + b"\n" for event in (_begin(job, events[0]), *events, _end(events[-1])))
    return path


def _begin(job: JobId, first: Mapping[str, Any]) -> dict[str, Any]:
    ago = timedelta(microseconds=(time.monotonic_ns() - first["t_ns"]) // 1000)
    return {
        "event": "trace.begin",
        "schema": SCHEMA,
        "t_ns": first["t_ns"],
        "time": (datetime.now(UTC) - ago).isoformat(timespec="microseconds"),
        "tracehook": __version__,
        "python": platform.python_version(),
        "host": own_host(),
        "pid": os.getpid(),
        "job": encodable(job.id or "") or None,
        "rank": None,
        "emulated": True,
        "argv": ["tracehook rehearse"],
    }


def _end(last: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": "trace.end", "t_ns": last["t_ns"], "dropped": 0, "how": "exit"}


def _violations(broken: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in broken:
        if "t_ns" not in row:  # a line that cannot be read
            continue
        event = {
            "event": "rehearsal.violation",
            "t_ns": row["t_ns"],
            "comm": row["comm"] or None,
            "comm_rank": row["rank"] if row["comm"] else None,
            "process_id": row["pid"],
            "rank": row["global_rank"] if row["global_rank"] >= 0 else None,
            "nccl_rule": row["rule"],
            "sentence": row["sentence"],
            "details": row["details"],
            "consequence_of": row["consequence_of"] or None,
        }
        yield {name: value for name, value in event.items() if value is not None}


def _hangs(hang: Standstill | None) -> Iterator[dict[str, Any]]:
    calls = hang.calls if hang is not None else []
    began = min((call.since_ns for call in calls), default=0)
    # The calls have an order, the most telling first, which is not that in which ranks came to them.
    for place, call in enumerate(calls):
        event = {
            "event": "rehearsal.hang",
            "t_ns": began + place,
            "comm": call.key or None,
            "sentence": call.sentence,
            "involved": list(call.ranks),
        }
        yield {name: value for name, value in event.items() if value is not None}
