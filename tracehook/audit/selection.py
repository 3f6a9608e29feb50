"""Which processes of a directory a command is about, and the clock that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tracehook.log.directory import Directory
from tracehook.log.file import LogFile
from tracehook.log.jobs import LoggedJob, choose, jobs_of
from tracehook.log.lines import LogError, whole_number

LATEST = 1 << 61  # a number beyond this one counts nothing; nanoseconds of 73 years
_LARGE = ("t_ns", "part_t_ns", "after_t_ns", "from_seq")


@dataclass(frozen=True)
class Selection:
    """Which processes of the directory are meant: those of a job, those that began at or after a time.

    Without a job, it is the one that began last; of a job they are those of its last attempt. `launchers`: with the
    processes that only started the others; a launcher that tells of ranks is always meant.
    """

    job: str | None = None
    since: datetime | None = None
    launchers: bool = True


NEWEST = Selection()


@dataclass(frozen=True)
class Selected:
    """The logs that are meant. `left_out`: which jobs and attempts are not."""

    logs: list[LogFile]
    left_out: str = ""


def jobs_in(directory: Directory, since: datetime | None = None) -> list[LoggedJob[LogFile]]:
    """Return the jobs of a directory, the one that began last first. Raises :class:`LogError` if no log is left."""
    return jobs_of(_since(directory, since))


def select(directory: Directory, selection: Selection) -> Selected:
    """Return the logs that are meant. Raises :class:`LogError` if there is none."""
    logs = _since(directory, selection.since)
    choice = choose(directory.path, jobs_of(logs), selection.job)
    if choice is None:
        return Selected(logs)
    job = choice.job
    launchers = [log for log in job.launchers if selection.launchers or log.participation.tells_of_ranks]
    meant = {id(log) for log in (*job.workers, *launchers)}
    return Selected([log for log in logs if id(log) in meant], choice.left_out)


def _since(directory: Directory, since: datetime | None) -> list[LogFile]:
    if since is None:
        return directory.logs
    moment = since.astimezone(UTC).replace(tzinfo=None)
    logs = [log for log in directory.logs if log.began is not None and log.began >= moment]
    if not logs:
        raise LogError(f"{directory.path}: no log in it began at or after {since}")
    return logs


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
    return whole_number(begin.get(name), LATEST if name in _LARGE else 1 << 31)
