"""Which processes of a directory an audit is about, and the clock that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tracehook.log.directory import Directory
from tracehook.log.file import LogFile
from tracehook.log.lines import LogError, whole_number

LATEST = 1 << 61  # a number beyond this one counts nothing; nanoseconds of 73 years
_NO_NAME = "(no name)"  # of a job


@dataclass(frozen=True)
class Selection:
    """Which processes of the directory are meant: those of a job, those that began at or after a time."""

    job: str | None = None
    since: datetime | None = None


ALL = Selection()


def select(directory: Directory, selection: Selection) -> list[LogFile]:
    """Return the logs that are meant. Raises :class:`LogError` if there is none, or if they are of several jobs."""
    logs = directory.logs
    if selection.since is not None:
        since = selection.since.astimezone(UTC).replace(tzinfo=None)
        logs = [log for log in logs if log.began is not None and log.began >= since]
    jobs = sorted({log.job or _NO_NAME for log in logs if _of_a_job(log)})
    if selection.job is not None:
        # A process without either is the launcher, or a tool that was run beside the job.
        logs = [log for log in logs if (log.job or _NO_NAME) == selection.job or not _of_a_job(log)]
        if selection.job not in jobs:
            raise LogError(f"{directory.path}: no job {selection.job!r} in it; there are: {', '.join(jobs) or 'none'}")
    elif len(jobs) > 1:
        raise LogError(
            f"{directory.path}: holds the logs of {len(jobs)} jobs; choose one with --job: {', '.join(jobs)}"
        )
    if not logs:
        raise LogError(f"{directory.path}: no log in it began at or after {selection.since}")
    return logs


def _of_a_job(log: LogFile) -> bool:
    return log.rank is not None or log.job is not None


def shifts(logs: Sequence[LogFile]) -> list[int]:
    """Return for each log what to add to its ``t_ns``, so that 0 is when the first process of the job began."""
    epochs: dict[str, int] = {}  # of each host: wall time minus monotonic time
    for log in logs:
        began, monotonic = log.began, integer(log.begin, "t_ns")
        if monotonic is not None and began is not None and log.begin.get("host") is not None:
            wall = int(began.replace(tzinfo=UTC).timestamp() * 1e6) * 1000
            epochs.setdefault(str(log.begin["host"]), wall - monotonic)
    # A host that does not tell the time is taken for the first that does.
    fallback = next(iter(epochs.values()), 0)
    epoch_of = [epochs.get(str(log.begin.get("host")), fallback) for log in logs]
    begins = [
        epoch + t for log, epoch in zip(logs, epoch_of, strict=True) if (t := integer(log.begin, "t_ns")) is not None
    ]
    zero = min(begins, default=0)
    return [epoch - zero for epoch in epoch_of]


def integer(begin: dict[str, Any], name: str) -> int | None:
    """Return a number of a first line; None if it is none that can be."""
    return whole_number(begin.get(name), LATEST if name == "t_ns" else 1 << 31)
