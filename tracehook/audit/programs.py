"""Ranks that run the same program, and which of them comes apart from the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tracehook.audit.called import Caller, Callers
from tracehook.audit.waits import Wait, is_ahead
from tracehook.log.calls import MAKING

_LEAST_NEW = 12  # the same, if one of them then made a call that it had not made before
_LEAST = 3  # calls that two ranks must have made alike before they came apart, to be called ranks of one program
_BEHIND = 2  # calls that a rank of the same program may be behind, where it did not come apart
# A rank departs from what it did before if after the same calls, at least so many, it called another thing at least so
# often, and always. Only these many calls are looked at, and only in a circle of so many ranks.
_CONTEXT, _SEEN, _LOOKED_AT, _MOST_RANKS = 3, 2, 256, 32

Token = tuple[int, int, int, int]
Program = tuple[tuple[int, Token], ...]  # the calls that are remembered, with their places in the order of the process


def odd_ones(job: Callers, suspects: Collection[Caller]) -> list[Caller]:
    """Return those of `suspects` whose order of calls is not that of most ranks that run the same program."""
    runs: dict[Program, list[Caller]] = defaultdict(list)  # most ranks of a large job made the very same calls
    for process in job.processes:
        runs[_program(process)].append(process)
    counts = {program: len(processes) for program, processes in runs.items()}
    odd = {process.number for program, each in runs.items() if _is_odd(program, counts) for process in each}
    return [process for process in suspects if process.number in odd]


def _program(process: Caller) -> Program:
    made = [(place, step.token) for place, step in process.steps.items()]
    for each in process.making:
        if each.making is not None:  # where others have their next call
            made.append((each.making.after + 1, (0, MAKING, each.making.child, -1)))
    return tuple(made)


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


class _Comparison(NamedTuple):
    """Two programs beside each other."""

    agreed: int  # calls that are alike, at the places that both remember
    place: int | None  # of the first call that differs


def _compare(one: Program, other: Mapping[int, Token]) -> _Comparison | None:
    """Compare two programs; None if they come apart and are two: these calls were not made before in what is alike."""
    alike: set[Token] = set()
    agreed = 0
    for place, token in one:
        if place in other:
            if other[place] != token:
                new = sum(each not in alike and each[1] != MAKING for each in (token, other[place]))
                return _Comparison(agreed, place) if agreed >= (_LEAST, _LEAST_NEW, 1 << 62)[new] else None
            alike.add(token)
            agreed += 1
    return _Comparison(agreed, None)


def _comes_apart(one: Program, other: Program) -> int | None:
    """Return the place of the first call that differs; None if none does, or if they do not run the same program."""
    found = _compare(one, dict(other))
    return found.place if found is not None else None


def culprits(job: Callers, circle: Sequence[Caller]) -> list[Caller]:
    """Return who of ranks that wait for each other came apart from others, or from itself; all of them if none did."""
    if any(is_ahead(one, other) for one in circle for other in circle):
        return list(circle)
    suspects = list(circle)
    for narrowed in (odd_ones, _differing, _departing):
        suspects = narrowed(job, suspects) or suspects
    return suspects


def _differing(job: Callers, suspects: Sequence[Caller]) -> list[Caller]:
    """Return who of the suspects came apart from the rank with which it agreed longest."""
    runs = Counter(map(_program, job.processes))
    differing = []
    for process in suspects:
        mine = _program(process)
        others = [dict(program) for program, count in runs.items() if program != mine or count > 1]
        compared = [found for other in others if (found := _compare(mine, other)) is not None]
        stays = max((each.agreed for each in compared if each.place is None), default=0)
        if any(each.place is not None and each.agreed > stays + _BEHIND for each in compared):
            differing.append(process)
    return differing


def _departing(_: Callers, suspects: Sequence[Caller]) -> list[Caller]:
    return [process for process in suspects if _departs(process)] if len(suspects) <= _MOST_RANKS else []


def _departs(process: Caller) -> bool:
    """Whether a process called another thing than always before after the same calls, and it is no new thing."""
    tokens = [
        (step.comm, step.call.what, step.call.elements, step.call.root)
        for step in process.in_order
        if step.call.order >= process.remembered_since
    ][-_LOOKED_AT:]
    same: list[int] = []  # how many calls before each are those before this one
    for at, token in enumerate(tokens):
        same = [0, *(same[place] + 1 if tokens[place] == tokens[at - 1] else 0 for place in range(at - 1))]
        alike = sorted(same[:at])[-_SEEN:][0] if at >= _SEEN else 0
        followed = {tokens[place] for place in range(at) if same[place] >= alike}
        if alike >= _CONTEXT and token not in followed and token in tokens[:at]:
            return True
    return False


def ends(processes: Sequence[Caller], waiting: Mapping[int, Sequence[Wait]]) -> list[list[Caller]]:
    """Return the ends of the chains: one who waits for nobody, or some who wait for each other only."""
    missing = {number: {each.number for wait in its for each in wait.missing} for number, its in waiting.items()}
    by_number = {process.number: process for process in processes}
    awaited = set().union(*missing.values())
    found = [[process] for process in processes if process.number in awaited and process.number not in missing]
    behind: dict[int, list[int]] = defaultdict(list)
    for number, others in missing.items():
        for other in others:
            behind[other].append(number)
    led = {process.number for (process,) in found}
    ahead = list(led)
    while ahead:
        for number in behind[ahead.pop()]:
            if number not in led:
                led.add(number)
                ahead.append(number)
    left = [number for number in missing if number not in led]
    while left:  # who can be reached from one that can reach all that it reaches is at an end
        reached = _reached(left[0], missing)
        while len(further := min((_reached(each, missing) for each in reached), key=len)) < len(reached):
            reached = further
        found.append([by_number[number] for number in sorted(reached)])
        left = [number for number in left if not _reached(number, missing) & reached]
    return found


def _reached(start: int, missing: Mapping[int, Collection[int]]) -> set[int]:
    found: set[int] = set()
    ahead = [start]
    while ahead:
        for number in missing[ahead.pop()]:
            if number not in found:
                found.add(number)
                ahead.append(number)
    return found
