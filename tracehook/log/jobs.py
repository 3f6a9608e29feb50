"""The jobs whose logs lie in one directory, and which of them is meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from tracehook.log.file import Participation, began_of, job_of, launcher_job_of, rank_of
from tracehook.log.job_id import is_made
from tracehook.log.lines import Event, LogError, whole_number
from tracehook.log.text import many, printable, ranks_in_words

NO_ID: Final = "(no id)"  # stands for that of a job without one
_MOST_TOLD = 3
_MOST_DIGITS = 10  # of the number of an attempt


class Participant(Protocol):
    """A process of a job: a log, or one that is still being read."""

    @property
    def begin(self) -> Event:
        """The first line of its log."""

    @property
    def participation(self) -> Participation:
        """What it took part in."""


P = TypeVar("P", bound=Participant)


@dataclass(frozen=True)
class LoggedJob(Generic[P]):
    """The processes of one job. Launchers have neither a rank nor a device: they start the others, or stand beside."""

    ids: tuple[str, ...]  # the first is the one that it is called
    workers: tuple[P, ...]
    launchers: tuple[P, ...]

    @property
    def id(self) -> str:
        """What it is called."""
        return self.ids[0]

    @property
    def attempts(self) -> list[int]:
        """The numbers of its attempts, as far as its launcher counts them."""
        return sorted({number for process in self.workers if (number := _attempt(process)) is not None})

    def only(self, attempt: int | None) -> LoggedJob[P]:
        """Return the job with the processes of one attempt, None: of the last one.

        Agents of several hosts may count their attempts differently. So a process is of an earlier attempt only if a
        later one has its rank, or has fewer ranks. A job may have two programs, such as a trainer and a server, and its
        launcher starts one of them again. So this method compares only attempts of the same program.
        """
        if attempt is not None:
            return replace(self, workers=tuple(each for each in self.workers if _attempt(each) == attempt))
        last: dict[tuple[str, int | None], int] = {}
        worlds: dict[str, tuple[int, int]] = {}  # the last attempt of each program, and how many ranks that has
        for process in self.workers:
            program, rank, number = _program(process), _rank(process), _attempt(process) or 0
            last[program, rank] = max(last.get((program, rank), 0), number)
            size = whole_number(process.begin.get("world_size"), 1 << 31) or 0
            worlds[program] = max(worlds.get(program, (0, 0)), (number, size))

        def is_of_last(process: P) -> bool:
            program, rank, number = _program(process), _rank(process), _attempt(process) or 0
            newest, size = worlds[program]
            return rank is None or (number >= last[program, rank] and (number >= newest or rank < size))

        return replace(self, workers=tuple(filter(is_of_last, self.workers)))

    @property
    def began(self) -> datetime:
        """When the first of its processes began, in UTC."""
        return min((_began(process) for process in self.workers), default=datetime.min)

    @property
    def program(self) -> str:
        """The program, without its folders."""
        argv = self.workers[0].begin.get("argv")
        return Path(str(argv[0])).name if isinstance(argv, list) and argv and argv[0] else "?"

    @property
    def ranks(self) -> str:
        """Its ranks, and how many processes there are that have none, in words."""
        known = [_rank(process) for process in self.workers]
        without = known.count(None)
        ranks = {rank for rank in known if rank is not None}
        words = [ranks_in_words(ranks)] if ranks else []
        if without:
            words.append(f"{many(without, 'process')} without rank")
        return " and ".join(words)

    @property
    def description(self) -> str:
        """Id, program, time and ranks, in one line."""
        return f"{printable(self.id, 100)} ({printable(self.program, 60)}, began {told_time(self.began)}, {self.ranks})"

    def as_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it (docs/audit.md)."""
        ranks = sorted({rank for process in self.workers if (rank := _rank(process)) is not None})
        return {
            "id": self.id,
            "began": None if self.began == datetime.min else f"{self.began.isoformat()}Z",
            "program": self.program,
            "ranks": ranks,
            "processes": len(self.workers),
        }


def jobs_of(processes: Iterable[P]) -> list[LoggedJob[P]]:
    """Return the jobs of these processes, the one that began last first.

    Processes are of one job if they have one id. They also are if they share a communicator and tracehook made their
    ids: workers that were started without the id, as by a service that runs for long, have each made one.
    """
    everybody = list(processes)
    groups: dict[str | None, list[P]] = {}
    for process in everybody:
        if _is_worker(process):
            groups.setdefault(job_of(process.begin), []).append(process)
    launchers = [process for process in everybody if not _is_worker(process)]
    found = [_job(ids, groups, launchers) for ids in _joined(groups)]
    if len(found) == 1:
        found = [LoggedJob(found[0].ids, found[0].workers, tuple(launchers))]
    return sorted(found, key=lambda job: job.began, reverse=True)


@dataclass(frozen=True)
class ChosenJob(Generic[P]):
    """The job that is meant, with the processes of one attempt; `left_out` says in a line what is not looked at."""

    job: LoggedJob[P]
    left_out: str


def choose(place: object, jobs: Sequence[LoggedJob[P]], wanted: str | None) -> ChosenJob[P] | None:
    """Return the job called `wanted`, or the one that began last; None if there is none, and none is wanted.

    The beginning of a name is enough where only one job has it. ``ID#1`` means attempt 1 of the job, and no number the
    last attempt.

    Raises :class:`LogError`, with the jobs, or the attempts, that there are.
    """
    if wanted is None:
        return (
            ChosenJob(jobs[0].only(None), "; ".join(filter(None, (_others(jobs), _earlier(jobs[0]))))) if jobs else None
        )
    name, _, number = wanted.rpartition("#")
    is_number = number.isascii() and number.isdigit() and len(number) < _MOST_DIGITS
    if not name or not is_number or any(wanted in job.ids for job in jobs):
        job = _called(place, jobs, wanted)
        return ChosenJob(job.only(None), _earlier(job))
    job = _called(place, jobs, name)
    if int(number) not in job.attempts:
        there = ", ".join(map(str, job.attempts)) or "none that its launcher counts"
        raise LogError(f"{place}: no attempt {number} of job {printable(job.id, 100)} in it; there are: {there}")
    return ChosenJob(job.only(int(number)), "")


def _called(place: object, jobs: Sequence[LoggedJob[P]], wanted: str) -> LoggedJob[P]:
    for job in jobs:
        if wanted in job.ids:
            return job
    alike = [job for job in jobs if wanted and any(name.startswith(wanted) for name in job.ids)]
    if len(alike) == 1:
        return alike[0]
    if alike:
        there = "; ".join(job.description for job in alike[:_MOST_TOLD])
        raise LogError(f"{place}: {len(alike)} jobs begin with {wanted!r}: {there}{_more(alike[_MOST_TOLD:])}")
    there = "; ".join(job.description for job in jobs[:_MOST_TOLD]) or "none"
    raise LogError(f"{place}: no job {wanted!r} in it; there are: {there}{_more(jobs[_MOST_TOLD:])}")


def _earlier(job: LoggedJob[P]) -> str:
    """Say which attempt of a job is looked at, if there are several."""
    *earlier, last = job.attempts or [0]
    if not earlier:
        return ""
    name = printable(job.id, 100)
    return f"the last attempt of job {name}, number {last}; --job '{name}#{earlier[-1]}' chooses the one before"


def _others(jobs: Sequence[LoggedJob[P]]) -> str:
    """Say which job is looked at where nobody chose one, and which are not; nothing if there is only one."""
    if len(jobs) < 2:
        return ""
    told = "; ".join(job.description for job in jobs[1 : 1 + _MOST_TOLD])
    more = _more(jobs[1 + _MOST_TOLD :])
    return f"the newest of {len(jobs)} jobs, {jobs[0].description}; --job ID chooses another; left out: {told}{more}"


def told_time(time: datetime) -> str:
    """Return a time as people and --since write it."""
    return "at no known time" if time == datetime.min else f"{time:%Y-%m-%dT%H:%M:%S} UTC"


def _more(jobs: Sequence[object]) -> str:
    return f"; and {len(jobs)} more (tracehook jobs)" if jobs else ""


def _job(ids: Sequence[str | None], groups: dict[str | None, list[P]], launchers: Sequence[P]) -> LoggedJob[P]:
    workers = [process for name in ids for process in groups[name]]
    theirs = {*ids, *(launcher_job_of(process.begin) for process in workers)} - {None}
    return LoggedJob(
        tuple(name or NO_ID for name in ids),
        tuple(workers),
        tuple(process for process in launchers if job_of(process.begin) in theirs),
    )


def _joined(groups: dict[str | None, list[P]]) -> list[list[str | None]]:
    """Return the ids of each job, that of the earliest process first."""
    jobs: list[tuple[list[str | None], set[str]]] = []
    for name in sorted(groups, key=lambda name: min(map(_began, groups[name]))):
        ids, keys = [name], _keys(groups[name]) if name is not None and is_made(name) else set[str]()
        for job in [job for job in jobs if job[1] & keys]:
            jobs.remove(job)
            ids, keys = [*job[0], *ids], keys | job[1]
        jobs.append((ids, keys))
    return [ids for ids, _ in jobs]


def _keys(processes: Iterable[P]) -> set[str]:
    """Return the communicators of processes without a rank. Whoever gives a rank gives all of them one id, or none."""
    found = (process.participation.communicators for process in processes if rank_of(process.begin) is None)
    return {key for keys in found for key in keys}


def _is_worker(process: Participant) -> bool:
    return rank_of(process.begin) is not None or process.participation.used_device


def _rank(process: Participant) -> int | None:
    rank = rank_of(process.begin)
    return process.participation.rank if rank is None else rank


def _attempt(process: Participant) -> int | None:
    return whole_number(process.begin.get("attempt"), 1 << 31)


def _program(process: Participant) -> str:
    return str(process.begin.get("argv"))


def _began(process: Participant) -> datetime:
    return began_of(process.begin) or datetime.min
