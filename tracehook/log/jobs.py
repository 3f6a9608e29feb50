"""The jobs whose logs lie in one directory, and which of them is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from tracehook.log.file import Participation, began_of, job_of, rank_of
from tracehook.log.job_id import is_made
from tracehook.log.lines import Event, LogError, whole_number
from tracehook.log.text import many, number_in, printable, ranks_in_words

NO_ID: Final = "(no id)"  # stands for that of a job without one
_MOST_TOLD = 3


class Participant(Protocol):
    """A process of a job: a log, or one that is still being read."""

    @property
    def begin(self) -> Event:
        """The first line of its log."""

    @property
    def participation(self) -> Participation:
        """What it took part in."""

    @property
    def last_ns(self) -> int | None:
        """The time of its last event, on the clock of its first line; None if it may go on, or nothing tells."""


P = TypeVar("P", bound=Participant)


@dataclass(frozen=True)
class LoggedJob(Generic[P]):
    """The processes of one job. Launchers have neither a rank nor a device: they start the others, or stand beside."""

    ids: tuple[str, ...]  # the first is the one that it is called
    workers: tuple[P, ...]
    launchers: tuple[P, ...]
    numbers: Mapping[int, int] = field(default_factory=dict)  # of the attempt of a worker, by its identity

    @property
    def id(self) -> str:
        """What it is called."""
        return self.ids[0]

    @property
    def attempts(self) -> list[int]:
        """The numbers of its attempts."""
        return sorted(set(self.numbers.values()))

    def only(self, attempt: int | None) -> LoggedJob[P]:
        """Return the job with the processes of one attempt, None: of the last one.

        Agents of several hosts may count their attempts differently. So a process is of an earlier attempt only if a
        later one has its rank, or has fewer ranks. A job may have two programs, such as a trainer and a server, and its
        launcher starts one of them again. So this method compares only attempts of the same program.
        """
        if attempt is not None:
            return replace(self, workers=tuple(each for each in self.workers if self.numbers[id(each)] == attempt))
        last: dict[tuple[str, int | None], int] = {}
        worlds: dict[str, tuple[int, int]] = {}  # the last attempt of each program, and how many ranks that has
        for process in self.workers:
            program, rank, number = _program(process), _rank(process), self.numbers[id(process)]
            last[program, rank] = max(last.get((program, rank), 0), number)
            size = whole_number(process.begin.get("world_size"), 1 << 31) or 0
            worlds[program] = max(worlds.get(program, (0, 0)), (number, size))

        def is_of_last(process: P) -> bool:
            program, rank, number = _program(process), _rank(process), self.numbers[id(process)]
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
        found = [replace(found[0], launchers=tuple(launchers))]
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
    attempt = number_in(number)
    if not name or attempt is None or any(wanted in job.ids for job in jobs):
        job = _called(place, jobs, wanted)
        return ChosenJob(job.only(None), _earlier(job))
    job = _called(place, jobs, name)
    if attempt not in job.attempts:
        there = ", ".join(map(str, job.attempts)) or "none"
        raise LogError(f"{place}: no attempt {number} of job {printable(job.id, 100)} in it; there are: {there}")
    return ChosenJob(job.only(attempt), "")


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
    theirs = {*ids, *(job_of(process.begin, "launcher_job") for process in workers)} - {None}
    return LoggedJob(
        tuple(name or NO_ID for name in ids),
        tuple(workers),
        tuple(process for process in launchers if job_of(process.begin) in theirs),
        _attempts(workers),
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
    found = (set(process.participation.communicators) for process in processes if rank_of(process.begin) is None)
    return {key for keys in found for key in keys}


def _is_worker(process: Participant) -> bool:
    return rank_of(process.begin) is not None or process.participation.used_device


def _rank(process: Participant) -> int | None:
    rank = rank_of(process.begin)
    return process.participation.rank if rank is None else rank


def _attempts(workers: Iterable[Participant]) -> dict[int, int]:
    """Return the numbers of the attempts, by the identity of a process: those of the launcher, if it counts them.

    A rank that lives again under no higher number began an attempt too: a program called ``mp.spawn`` again, or two
    runs have one id. Whatever began after its last life was over is of that attempt.
    """
    numbers: dict[int, int] = {}
    begun: dict[str, list[Participant]] = {}  # those of a program, in their order
    lives: dict[tuple[str, int | None], list[Participant]] = {}
    shifts: dict[str, int] = {}  # from the launcher's number to ours
    for process in sorted(workers, key=_began):
        program, rank = _program(process), _rank(process)
        number = (whole_number(process.begin.get("attempt"), 1 << 31) or 0) + shifts.get(program, 0)
        peers, earlier = begun.setdefault(program, []), lives.setdefault((program, rank), [])
        over = _over_by(earlier, process) if rank is not None and earlier else None
        if over and max(numbers[id(other)] for other in earlier) >= number:
            shift = 1 + max(numbers[id(peer)] for peer in peers) - number
            shifts[program] = shifts.get(program, 0) + shift
            number += shift
            numbers |= {id(peer): numbers[id(peer)] + shift for peer in peers if _began(peer) > over}
        numbers[id(process)] = number
        peers.append(process)
        earlier.append(process)
    return numbers


def _over_by(earlier: Iterable[Participant], later: Participant) -> datetime | None:
    """Return when those of one rank were over; None if one of them was not before `later`, of that rank too, began.

    A helper of a rank, such as a worker of a data loader, may have its number, and is in no group.
    """
    if not later.participation.is_in_groups:
        return None
    ends = [_over(process) for process in earlier if process.participation.is_in_groups]
    over = max((end or datetime.max for end in ends), default=datetime.max)
    return over if over < _began(later) else None


def _over(process: Participant) -> datetime | None:
    """Return when the last event of a process came, in UTC; None if it may go on."""
    began, first_ns = began_of(process.begin), whole_number(process.begin.get("t_ns"))
    if process.last_ns is None or began is None or first_ns is None:
        return None
    return began + timedelta(microseconds=max(0, process.last_ns - first_ns) // 1000)


def _program(process: Participant) -> str:
    return str(process.begin.get("argv"))


def _began(process: Participant) -> datetime:
    return began_of(process.begin) or datetime.min
