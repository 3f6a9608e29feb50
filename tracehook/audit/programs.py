"""Ranks that run the same program, and which of them comes apart from the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from tracehook.audit.called import Caller, Callers, Step
from tracehook.audit.waits import Wait

_ALIKE = 3  # calls that two ranks must have made alike before they came apart, to be called ranks of one program

Token = tuple[int, int, int, int]
Program = tuple[tuple[int, Token], ...]  # the calls that are remembered, with their places in the order of the process


def odd_ones(job: Callers, suspects: Collection[Caller]) -> list[Caller]:
    """Return those of `suspects` whose order of calls is not that of most ranks that run the same program."""
    runs: dict[Program, list[Caller]] = defaultdict(list)  # most ranks of a large job made the very same calls
    for process in job.processes:
        runs[_program(process.steps)].append(process)
    counts = {program: len(processes) for program, processes in runs.items()}
    odd = {process.number for program, each in runs.items() if _is_odd(program, counts) for process in each}
    return [process for process in suspects if process.number in odd]


def _program(steps: Mapping[int, Step]) -> Program:
    return tuple((place, step.token) for place, step in steps.items())


def _is_odd(program: Program, counts: Mapping[Program, int]) -> bool:
    """Whether more ranks agree with each other against this program than with it, where it comes apart from them."""
    apart = {other: _comes_apart(program, other) for other in counts if other != program}
    places = [place for place in apart.values() if place is not None]
    if not places:
        return False
    place = max(places)  # of ranks of the same program: the latest
    against = [other for other, at in apart.items() if at == place]
    mine = dict(program)[place]
    with_me = [
        other
        for other, at in apart.items()
        if at != place and dict(other).get(place) == mine and _comes_apart(other, against[0]) == place
    ]
    agree = counts[program] + sum(counts[other] for other in with_me)
    differ = sum(counts[other] for other in against)
    return differ > max(agree, 1)


def _comes_apart(one: Program, other: Program) -> int | None:
    """Return the place of the first call that differs; None if none does, or if they do not run the same program."""
    others = dict(other)
    agreed = 0
    for place, token in one:
        if place in others:
            if others[place] != token:
                return place if agreed >= _ALIKE else None
            agreed += 1
    return None


def fewest(suspects: Collection[Caller]) -> list[Caller]:
    """Return those of `suspects` that made fewer collectives than the others; none if all made as many."""
    made = {process: sum(calls.collectives for calls in process.parts.values()) for process in suspects}
    least = min(made.values(), default=0)
    found = [process for process, count in made.items() if count == least]
    return found if len(found) < len(made) else []


def most_awaited(circle: Collection[Caller], waiting: Mapping[int, Wait]) -> list[Caller]:
    """Return the one process for which most others of a circle wait, if they wait for nobody else; or nobody."""
    awaited = Counter(wait.missing[0].number for each in circle if len((wait := waiting[each.number]).missing) == 1)
    ranked = [*awaited.most_common(2), (-1, 0), (-1, 0)]
    (first, most), (_, second) = ranked[0], ranked[1]
    return [each for each in circle if each.number == first] if most > second + 1 else []
