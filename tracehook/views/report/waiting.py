"""Who waits for whom at the end of a job: boxes of ranks that wait in one call, and arrows to those who did not come.

The last column has those who wait for nobody; each column before it waits for the ones after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracehook.audit import blame
from tracehook.audit.called import HOST, MADE, TRANSFER, Caller, Callers, Wait
from tracehook.audit.finding import Finding
from tracehook.audit.waits import waits
from tracehook.log.text import ranks_in_words
from tracehook.views.report.phrases import in_seconds, short

_MOST_BOXES = 30
_MOST_COLUMNS = 8
_MOST_LETTERS = 37  # of a line
_WIDTH, _LINE, _PAD = 250, 17, 8
_ACROSS, _DOWN = 56, 18  # between boxes
_SAG = 90  # of an arrow that passes a column; three quarters of it are seen


@dataclass
class Box:
    """Ranks that wait in one call for the same ranks, or do not wait and have the same fate."""

    members: list[Caller]
    lines: list[str]
    is_culprit: bool
    waits_for: frozenset[int] = frozenset()  # processes
    x: int = 0
    y: int = 0
    width: int = _WIDTH

    @property
    def height(self) -> int:
        """How high it is drawn."""
        return 2 * _PAD + _LINE * len(self.lines)


@dataclass
class WaitPicture:
    """The picture, in pixels. `said`: the same in words, a line a box."""

    boxes: list[Box]
    arrows: list[str] = field(default_factory=list)  # paths
    width: int = 0
    height: int = 0
    left_out: int = 0
    said: list[str] = field(default_factory=list)


def draw_waiting(job: Callers, findings: Iterable[Finding], names: Mapping[str, str]) -> WaitPicture | None:
    """Return the picture; None if nobody waits. `names`: of communicators."""
    found = waits(job)
    if not found:
        return None
    culprits = {finding.ranks[0] for finding in findings if finding.rule in blame.RULES and finding.ranks}
    groups = {wait.comm: _group(job, wait.comm, names) for wait in found}
    boxes = [*_waiting_boxes(job, found, culprits, groups), *_other_boxes(found, culprits)]
    columns = _columns(boxes)
    shown = sorted(boxes, key=lambda box: (columns[id(box)], -len(box.members)))[:_MOST_BOXES]
    picture = WaitPicture(shown, left_out=_ranks_in(boxes) - _ranks_in(shown))
    _place(picture, columns)
    picture.said = [": ".join(filter(None, (box.lines[0], ", ".join(box.lines[1:])))) for box in shown]
    return picture


def _ranks_in(boxes: Iterable[Box]) -> int:
    return sum(len(box.members) for box in boxes)


def _waiting_boxes(
    job: Callers, found: Sequence[Wait], culprits: Collection[int], groups: Mapping[str, str]
) -> list[Box]:
    alike: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
    for wait in found:
        missing = frozenset(process.number for process in wait.missing)
        alike[wait.comm, wait.step.kind, wait.number, missing, wait.process.rank in culprits].append(wait)
    return [_waiting_box(job, waiting, culprits, groups) for waiting in alike.values()]


def _waiting_box(job: Callers, waiting: Sequence[Wait], culprits: Collection[int], groups: Mapping[str, str]) -> Box:
    first = waiting[0]
    members = [wait.process for wait in waiting]
    kind = first.step.call.operation if first.step.kind == TRANSFER else "call"
    place = "where NCCL makes a child" if first.step.kind == MADE else f"in {kind} {first.number + 1}"
    if first.step.kind == HOST:
        place = f"in {first.step.function}"
    of_what = f" of {groups[first.comm]}" if first.comm else ", outside of NCCL"
    lines = [
        _named(members),
        place + of_what,
        *([job.described(first.comm, first.step.call)] if first.step.kind not in (MADE, HOST) else []),
        f"since {in_seconds(_earliest(members))}, waits for {_named(first.missing)}",
    ]
    is_culprit = first.process.rank in culprits
    return Box(members, [_cut(line) for line in lines], is_culprit, frozenset(one.number for one in first.missing))


def _group(job: Callers, comm: str, names: Mapping[str, str]) -> str:
    """Name a communicator; one without a name of its own with its ranks."""
    ranks = _named([member.process for member in job.members.get(comm, {}).values()])
    return job.names.get(comm) or f"{names.get(comm, comm)} ({ranks})"


def _other_boxes(found: Sequence[Wait], culprits: Collection[int]) -> list[Box]:
    """Return boxes of those who did not come, and wait for nobody."""
    waiting = {wait.process.number for wait in found}
    others = {one.number: one for wait in found for one in wait.missing if one.number not in waiting}
    alike: dict[tuple[str, bool], list[Caller]] = defaultdict(list)
    for process in others.values():
        alike[_fate(process), process.rank in culprits].append(process)
    return [
        Box(members, [_cut(line) for line in (_named(members), "did not come", fate)], is_culprit)
        for (fate, is_culprit), members in alike.items()
    ]


def _fate(process: Caller) -> str:
    if process.exception:
        return f"ended by {process.exception}"
    if process.ended:
        return "ended in order"
    if process.signal and not process.was_ended:
        return f"ended by signal {process.signal}"
    return f"no call since {in_seconds(process.moved_ns)}"


def _columns(boxes: Sequence[Box]) -> dict[int, int]:
    """Return how many arrows lead from each box, the longest way, to a culprit or one who waits for nobody."""
    at = {member.number: box for box in boxes for member in box.members}
    columns = {id(box): 0 for box in boxes}
    for _ in range(_MOST_COLUMNS):  # where ranks wait in a circle, the longest way has no end
        for box in boxes:
            if not box.is_culprit:
                further = [columns[id(at[number])] + 1 for number in box.waits_for if number in at]
                columns[id(box)] = min(max(further, default=0), _MOST_COLUMNS)
    return columns


def _place(picture: WaitPicture, columns: Mapping[int, int]) -> None:
    last = max(columns[id(box)] for box in picture.boxes)
    tops: dict[int, int] = defaultdict(lambda: 1)
    for box in picture.boxes:
        column = last - columns[id(box)]
        box.x, box.y = 1 + column * (_WIDTH + _ACROSS), tops[column]
        tops[column] += box.height + _DOWN
    at = {member.number: box for box in picture.boxes for member in box.members}
    for box in picture.boxes:
        targets = {id(at[number]): at[number] for number in box.waits_for if number in at}
        picture.arrows += [_arrow(box, target) for target in targets.values()]
    picture.width = (last + 1) * (_WIDTH + _ACROSS) - _ACROSS // 2  # an arrow may go around the right of the last
    picture.height = max(tops.values()) + _DOWN


def _arrow(box: Box, target: Box) -> str:
    """Return a path between the sides of two boxes that face each other; in one column, around their right."""
    y, to_y = box.y + box.height // 2 - 5, target.y + target.height // 2 - 5
    if target.x > box.x:
        x, to_x, out, to_out = box.x + _WIDTH, target.x, _ACROSS // 2, -_ACROSS // 2
        if to_x - x > _ACROSS:  # below the boxes between them
            return f"M{x},{y} C{x + 2 * out},{y + _SAG} {to_x + 2 * to_out},{to_y + _SAG} {to_x},{to_y}"
    elif target.x < box.x:  # a little lower, because an arrow may lead the other way, too
        x, to_x, out, to_out = box.x, target.x + _WIDTH, -_ACROSS // 2, _ACROSS // 2
        y, to_y = y + 14, to_y + 14
    else:
        x = to_x = box.x + _WIDTH
        out = to_out = _ACROSS // 2
    return f"M{x},{y} C{x + out},{y} {to_x + to_out},{to_y} {to_x},{to_y}"


def _earliest(members: Sequence[Caller]) -> int | None:
    return min((moved for one in members if (moved := one.moved_ns) is not None), default=None)


def _named(members: Sequence[Caller]) -> str:
    ranks = sorted(one.rank for one in members if one.rank is not None)
    if len(ranks) < len(members):
        return ", ".join(one.name for one in members)
    return ranks_in_words(ranks)


def _cut(line: str) -> str:
    return short(line, _MOST_LETTERS)
