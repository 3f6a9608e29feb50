"""Ranks that run the same program, and which of them comes apart from the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tracehook.audit.called import HOST, MADE, Caller, Callers, Wait, by_process
from tracehook.audit.chains import go_on
from tracehook.audit.semaphores import readers
from tracehook.audit.waits import waits_without
from tracehook.log.calls import FORGOTTEN, MAKING, operation_name

_LEAST_NEW = 12  # the same, if one of them then made a call that it had not made before
_LEAST = 3  # calls that two ranks must have made alike before they came apart, to be called ranks of one program
_BEHIND = 2  # a rank may be so many calls behind another one of the same program
# A rank departs from what it did before if after the same calls, at least so many, it called another thing at least so
# often, and always. Only these many calls are looked at, and only in a circle of so many ranks.
_DEPARTURES = ((3, 3), (5, 1))
_LOOKED_AT, _MOST_RANKS = 256, 32
_NEVER = 1 << 62  # behind all calls

Token = tuple[int, int, int, int]
Program = tuple[tuple[int, Token], ...]  # the calls that are remembered, with their places in the order of the process
Since = Mapping[int, int]  # of each process the last call to which all came, in its order


def odd_ones(job: Callers, suspects: Collection[Caller], since: Since) -> list[Caller]:
    """Return those of `suspects` whose order of calls is not that of most ranks that run the same program.

    `since`: until there nobody was wrong, so who came apart before runs another program.
    """
    runs: dict[Program, list[Caller]] = defaultdict(list)  # most ranks of a large job made the very same calls
    for process in job.processes:
        runs[_program(process)].append(process)
    counts = {program: len(each) for program, each in runs.items()}
    until = {program: min(since[process.number] for process in each) for program, each in runs.items()}
    odd = {process.number for program, each in runs.items() if _is_odd(program, counts, until) for process in each}
    return [process for process in suspects if process.number in odd]


def _program(process: Caller) -> Program:
    made = [(place, step.token) for place, step in process.steps.items()]
    for each in process.making:
        if each.making is not None:  # where others have their next call
            made.append((each.making.after + 1, (0, MAKING, each.making.child, -1)))
    return tuple(made)


def _is_odd(program: Program, counts: Mapping[Program, int], until: Mapping[Program, int]) -> bool:
    """Whether more ranks agree with each other against this program than with it, where it comes apart from them."""
    apart = {other: _comes_apart(program, other, until[program]) for other in counts if other != program}
    places = [place for place in apart.values() if place is not None]
    if not places:
        return False
    place = max(places)  # of ranks of the same program: the latest
    against = [other for other, at in apart.items() if at == place]
    mine = dict(program)[place]
    with_me = [
        other
        for other, at in apart.items()
        if at != place and dict(other).get(place) == mine and _comes_apart(other, against[0], until[other]) == place
    ]
    agree = counts[program] + sum(counts[other] for other in with_me)
    differ = sum(counts[other] for other in against)
    return differ > max(agree, 1)


class _Comparison(NamedTuple):
    """Two programs beside each other."""

    agreed: int  # calls that are alike, at the places that both remember
    collectives: int  # of these
    place: int | None  # of the first call that differs

    def is_known(self, until: int) -> bool:
        """Whether it tells anything of two ranks of one program. `until`: the last call to which all ranks came.

        Who came apart before that runs another program. And without such a call, a few messages that are alike say
        little: stages of a pipeline all receive and send.
        """
        is_much = until > 0 or self.collectives >= _LEAST
        return self.place is None or (self.place > until and is_much)


def _compare(one: Program, other: Mapping[int, Token]) -> _Comparison | None:
    """Compare two programs; None if they are different programs: they differ in calls that neither made before."""
    alike: set[Token] = set()
    agreed = collectives = 0
    for place, token in one:
        if place in other:
            if other[place] != token:
                new = sum(each not in alike and each[1] != MAKING for each in (token, other[place]))
                is_one = agreed >= (_LEAST, _LEAST_NEW, _NEVER)[new]
                return _Comparison(agreed, collectives, place) if is_one else None
            alike.add(token)
            agreed += 1
            collectives += operation_name(token[1] & 0xFF) not in ("send", "recv")
    return _Comparison(agreed, collectives, None)


def run_alike(one: Caller, other: Caller) -> bool:
    """Whether two processes ran the same program, as far as both went."""
    found = _compare(_program(one), dict(_program(other)))
    return found is not None and found.place is None and found.agreed >= _LEAST


def _comes_apart(one: Program, other: Program, until: int) -> int | None:
    """Return the place of the first call that differs; None if none does, or if they do not run the same program."""
    found = _compare(one, dict(other))
    return found.place if found is not None and found.is_known(until) else None


def culprits(
    job: Callers, circle: Sequence[Caller], waiting: Mapping[int, Sequence[Wait]], is_hang: bool = True
) -> list[Caller]:
    """Return who of ranks that wait for each other is wrong; several, of whom any may be, if the calls cannot tell.

    Or, if it is no hang, of ranks that made different calls: these go on, and may meet again.

    First who can be the only one that is wrong. Of those, who read a peer's memory without the signal that the peer
    waits for; then who came apart from ranks of the same program, or from what it did before.
    """
    if any(wait.step.call.what & FORGOTTEN for process in circle for wait in waiting.get(process.number, ())):
        return list(circle)  # they ran too far ahead
    suspects = list(circle)
    if waiting and len(circle) <= _MOST_RANKS:
        suspects = [each for each in circle if explains(job, each, waiting)] or suspects
    reading = readers(wait for process in circle for wait in waiting.get(process.number, ()))
    suspects = [each for each in suspects if each in reading] or suspects
    if any(wait.some for process in circle for wait in waiting.get(process.number, ())):
        return suspects  # for whom they wait is not known, so it means nothing who made another call
    since, until = _open_since(job, waiting), _stands_at(waiting)
    asked = since if is_hang else dict.fromkeys(since, 0)
    suspects = _differing(job, suspects, asked, until if is_hang else {}, both=True) or suspects
    suspects = odd_ones(job, suspects, asked) or suspects
    if 1 < len(suspects) <= _MOST_RANKS:
        suspects = _departing(job, suspects, since, until) or suspects
    suspects = _differing(job, suspects, asked, until if is_hang else {}, both=False) or suspects
    makes = [wait for its in waiting.values() for wait in its if wait.step.kind == MADE]
    if 1 < len(suspects) <= _MOST_RANKS and makes:
        all_go_on = [each for each in suspects if not waits_without(job, each)]
        if len(all_go_on) < len(suspects):
            suspects = [each for each in all_go_on if not is_behind(each, makes)] or suspects
    return suspects


def is_behind(process: Caller, makes: Sequence[Wait]) -> bool:
    """Whether a process made fewer calls than those who make a communicator: it may still come there."""
    return any(
        process.parts[wait.comm].collectives < wait.process.parts[wait.comm].collectives
        for wait in makes
        if wait.comm in process.parts and wait.comm in wait.process.parts
    )


def explains(job: Callers, process: Caller, waiting: Mapping[int, Sequence[Wait]]) -> bool:
    """Whether a process can be the only one that is wrong: if it did what the others want, those would go on.

    Or they would wait for one that waits itself by now, and would go on, too.
    """
    return go_on(by_number(by_process(waits_without(job, process))), waiting)


def in_its_place(job: Callers, idle: Caller, waiting: Mapping[int, Sequence[Wait]]) -> list[Caller]:
    """Return who can be the only one that is wrong, if that process, for whom others wait, can't; each waits, too."""
    if len(job.processes) > _MOST_RANKS or explains(job, idle, waiting):
        return []
    awaited = {each.number for its in waiting.values() for wait in its for each in wait.missing}
    held = [each for each in job.processes if each.number in awaited & waiting.keys()]
    return [each for each in held if explains(job, each, waiting)]


def by_number(waiting: Mapping[int, Sequence[Wait]]) -> dict[int, list[tuple[int, ...]]]:
    """Return the numbers of those who are missing in the calls in which processes wait."""
    same = {id(wait.missing): tuple(each.number for each in wait.missing) for its in waiting.values() for wait in its}
    return {number: [same[id(wait.missing)] for wait in its] for number, its in waiting.items()}


def _stands_at(waiting: Mapping[int, Sequence[Wait]]) -> dict[int, int]:
    """Return of each process that waits the last call in which its device does, in its order.

    What a rank called behind that call holds nobody up.
    """
    its_own = {
        number: [wait for wait in its if wait.step.kind not in (MADE, HOST)] or its for number, its in waiting.items()
    }
    return {number: max(map(_place, its)) for number, its in its_own.items()}


def _place(wait: Wait) -> int:
    """Return where that wait stands in the order of its process; a host stands behind its last call."""
    return wait.step.call.order + (wait.step.kind in (MADE, HOST))


def _differing(
    job: Callers, suspects: Sequence[Caller], since: Since, until: Mapping[int, int], both: bool
) -> list[Caller]:
    """Return who of the suspects came apart from the rank with which it agreed longest, before it waited.

    `both`: before that other rank waited, too. Else the other one may be wrong, where calls differ in their peers only.
    """
    runs: dict[Program, list[int]] = defaultdict(list)  # until where each of these ranks came
    for process in job.processes:
        runs[_program(process)].append(until.get(process.number, _NEVER))
    differing = []
    for process in suspects:
        mine, end = _program(process), until.get(process.number, _NEVER)
        others = [(dict(program), max(its)) for program, its in runs.items() if program != mine or len(its) > 1]
        found = ((_compare(mine, other), min(end, its if both else _NEVER)) for other, its in others)
        compared = [(each, its) for each, its in found if each is not None and each.is_known(since[process.number])]
        stays = max((each.agreed for each, _ in compared if each.place is None), default=0)
        apart = ((each.agreed, each.place <= its) for each, its in compared if each.place is not None)
        if any(is_reached and agreed > stays + _BEHIND for agreed, is_reached in apart):
            differing.append(process)
    return differing


def _departing(job: Callers, suspects: Sequence[Caller], since: Since, until: Mapping[int, int]) -> list[Caller]:
    """Return who of the suspects departs from what it did before, if nobody departs who is none of them.

    Nobody does if one of them no longer remembers all calls in which that may be.
    """
    if any(each.remembered_since > since[each.number] + 1 for each in suspects):
        return []
    others = [each for each in job.processes if each not in suspects][:_MOST_RANKS]
    innocent = {way for each in others for way in _departures(each, since[each.number], *_DEPARTURES[-1])}
    found = set()
    for context, seen in _DEPARTURES:
        if seen == 1 and any(each.remembered_since for each in suspects):
            continue
        found |= {
            each.number
            for each in suspects
            if _departures(each, since[each.number], context, seen, until.get(each.number, _NEVER)) - innocent
        }
    return [each for each in suspects if each.number in found] if len(found) < len(suspects) else []


def _open_since(job: Callers, waiting: Mapping[int, Sequence[Wait]]) -> dict[int, int]:
    """Return of each process the last call to which all came, in its order: until there nobody was wrong."""
    since = dict.fromkeys((process.number for process in job.processes), 0)
    stuck = {number: min(map(_place, its)) for number, its in waiting.items()}
    for members in job.members.values():
        if len(members) == len(job.processes):
            past = {
                each.process.number: each.calls.collectives
                - sum(call.order >= stuck.get(each.process.number, _NEVER) for call in each.calls.last)
                for each in members.values()
            }
            alike = min(past.values())
            while len({call and call.digest for each in members.values() for call in [each.call(alike - 1)]}) > 1:
                alike -= 1
            for each in members.values():
                last = each.call(alike - 1)
                number = each.process.number
                since[number] = max(since[number], last.order if last is not None else 0)
    return since


def _departures(
    process: Caller, since: int, context: int, seen: int, until: int | None = None
) -> set[tuple[Token, Token]]:
    """Return the calls where a process did another thing than always before after the same calls, and no new thing.

    `until`: up to that place in its order, and did not do so again later, as the first step of a schedule is done again
    in the next one.
    """
    found = set()
    steps = [step for step in process.in_order if step.call.order >= process.remembered_since][-_LOOKED_AT:]
    tokens = [(step.comm, step.call.what, step.call.elements, step.call.root) for step in steps]
    same: list[int] = []  # how many calls before each are those before this one
    for at, token in enumerate(tokens):
        same = [0, *(same[place] + 1 if tokens[place] == tokens[at - 1] else 0 for place in range(at - 1))]
        alike = sorted(same[:at])[-seen:][0] if at >= seen else 0
        is_open = since < steps[at].call.order <= (_NEVER if until is None else until)
        if is_open and alike >= context and token in tokens[:at]:
            followed = {tokens[place] for place in range(at) if same[place] >= alike}
            is_habit = until is not None and any(
                tokens[place] == token and tokens[place - context : place] == tokens[at - context : at]
                for place in range(at + 1, len(tokens))
            )
            if len(followed) == 1 and token not in followed and tokens[:at].count(*followed) > 1 and not is_habit:
                found.add((steps[at - 1].token, steps[at].token))
    return found
