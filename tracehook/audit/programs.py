"""Ranks that run the same program, and which of them comes apart from the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracehook.audit.called import Caller, Callers

_ALIKE = 3  # calls that two ranks must have made alike before they came apart, to be called ranks of one program


def odd_ones(job: Callers, suspects: Iterable[Caller]) -> list[Caller]:
    """Return those of `suspects` whose order of calls is not that of most ranks that run the same program."""
    return [process for process in suspects if _is_odd(job, process)]


def _is_odd(job: Callers, process: Caller) -> bool:
    """Whether more ranks agree with each other against this one than with it, where it comes apart from them."""
    apart = {}
    for other in job.processes:
        place = _comes_apart(process, other) if other is not process else None
        if place is not None:
            apart[other.number] = (place, other)
    if not apart:
        return False
    place = max(place for place, _ in apart.values())  # of ranks of the same program: the latest
    against = [other for at, other in apart.values() if at == place]
    mine = process.steps[place].token
    with_me = [
        other
        for other in job.processes
        if other is not process
        and place in other.steps
        and other.steps[place].token == mine
        and _comes_apart(other, against[0]) == place
    ]
    return len(against) > len(with_me) + 1 or (len(against) > len(with_me) and len(against) >= 2)


def _comes_apart(one: Caller, other: Caller) -> int | None:
    """Return the place of the first call that differs; None if none does, or if they do not run the same program."""
    common = sorted(one.steps.keys() & other.steps.keys())
    for agreed, place in enumerate(common):
        if one.steps[place].token != other.steps[place].token:
            return place if agreed >= _ALIKE else None
    return None


def fewest(suspects: Sequence[Caller]) -> list[Caller]:
    """Return those of `suspects` that made fewer collectives than the others; none if all made as many."""
    made = {process: sum(calls.collectives for calls in process.parts.values()) for process in suspects}
    least = min(made.values(), default=0)
    found = [process for process, count in made.items() if count == least]
    return found if len(found) < len(made) else []
