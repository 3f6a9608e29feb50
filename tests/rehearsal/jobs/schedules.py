"""Random schedules of symmetric memory, equal on all ranks of a seed, and the ways in which one rank departs from one.

Nothing here needs torch: a schedule is a list of steps, and a departed one has a list of steps in the place of each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

SIZES = (2, 12, 32)  # MiB: one that shares a segment of torch's allocator with others, and two that do not


@dataclass(frozen=True)
class Make:
    """Make tensor `tensor` of `size` MiB: in a scope's body symmetric, else ordinary."""

    tensor: int
    size: int


@dataclass(frozen=True)
class Enter:
    """A scope of `groups`, with what is made in it; `fails`: an exception ends it, `exhausts`: want of memory."""

    groups: tuple[str, ...]
    body: tuple[Make | Enter, ...]
    fails: bool = False
    exhausts: bool = False

    def made(self) -> list[Make]:
        """Return what is made in it, and in those inside."""
        return [make for part in self.body for make in ([part] if isinstance(part, Make) else part.made())]


@dataclass(frozen=True)
class Free:
    """Let go of tensors."""

    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Collect:
    """A collective of `group` on `slot` of its tensors; all_reduce has the same tensor twice."""

    group: str
    name: str
    source: int
    target: int
    slot: int
    asynchronous: bool


@dataclass(frozen=True)
class Beside:
    """A scope, and on another thread a collective of tensors that were made before."""

    scope: Enter
    collect: Collect


@dataclass(frozen=True)
class Sync:
    """``tracehook.sync``."""

    groups: tuple[str, ...]


@dataclass(frozen=True)
class Trim:
    """``tracehook.trim``."""

    groups: tuple[str, ...]


Step = Make | Enter | Free | Collect | Beside | Sync | Trim
ENDINGS = ("trim and destroy", "free and destroy", "destroy and free", "abort and free")


@dataclass(frozen=True)
class Rules:
    """What a run's schedules may contain."""

    groups: tuple[str, ...]  # of which every schedule uses the first, and perhaps one more
    hangs: bool  # whether a divergence may be one that hangs in NCCL if the ranks do not compare every use
    apart: str = "-"  # one of these that some ranks are no members of
    threads: bool = False  # whether a collective may run beside a scope


@dataclass
class Schedule:
    """What one seed says."""

    seed: int
    groups: tuple[str, ...]
    steps: list[Step]
    ending: str
    divergence: str = ""
    rank: int = -1
    departed: list[list[Step]] = field(default_factory=list)  # the steps of `rank`

    def of(self, rank: int) -> list[list[Step]]:
        """Return what `rank` does at each step."""
        return self.departed if rank == self.rank else [[step] for step in self.steps]


def draw(seed: int, ranks: int, rules: Rules, divergence: str | None = None) -> Schedule:
    """Return the schedule of `seed`; with this divergence (empty: none), or with one in a third of the seeds."""
    drawn = _Drawing(random.Random(seed), rules)
    schedule = Schedule(seed, drawn.groups, drawn.steps, drawn.chance.choice(ENDINGS))
    chance = random.Random(f"{seed} diverges")
    if divergence is None:
        divergence = chance.choice(list(DIVERGENCES)) if chance.random() < 1 / 3 else ""
    if divergence:
        diverge(schedule, divergence, chance.randrange(ranks), chance, drawn, rules)
    return schedule


class _Drawing:
    """The steps of a schedule while they are drawn, and what the tensors are."""

    def __init__(self, chance: random.Random, rules: Rules) -> None:
        self.chance = chance
        self.rules = rules
        more = chance.choice(("", *rules.groups[1:]))
        self.groups = (rules.groups[0], more) if more else rules.groups[:1]
        self.kinds: dict[int, frozenset[str]] = {}  # the groups that a tensor was made for; none: ordinary
        self.failed: set[int] = set()  # made in a scope that failed: has a window if its segment had one
        self.live: list[int] = []
        self.alive: list[list[int]] = []  # before each step
        self.steps: list[Step] = []
        self._add(self._enter())
        for _ in range(chance.randint(4, 14)):
            kinds = (self._enter, self._make, self._free, self._collect, self._sync, self._trim, self._beside)
            kind = chance.choices(kinds, (5, 1, 3, 9, 1, 2, 3 * rules.threads))[0]
            step = kind()
            if step is not None:
                self._add(step)
        self._add(Sync(self.groups))

    def _add(self, step: Step) -> None:
        self.alive.append(list(self.live))
        self.steps.append(step)
        match step:
            case Make():
                self.live.append(step.tensor)
            case Enter():
                self.live += [make.tensor for make in step.made()]
            case Beside():
                self.live += [make.tensor for make in step.scope.made()]
            case Free():
                self.live = [tensor for tensor in self.live if tensor not in step.tensors]

    def new(self, groups: Sequence[str], size: int | None = None) -> Make:
        """Return the making of one more tensor."""
        tensor = len(self.kinds)
        self.kinds[tensor] = frozenset(groups)
        return Make(tensor, size or self.chance.choice(SIZES))

    def some_groups(self) -> tuple[str, ...]:
        """Return one group, or all of the schedule's; these have no common pool if not all ranks are in all of them."""
        if self.rules.apart not in self.groups and len(self.groups) > 1 and self.chance.random() < 0.4:
            return tuple(self.chance.sample(self.groups, len(self.groups)))
        return (self.chance.choice(self.groups),)

    def _enter(self, depth: int = 0, groups: tuple[str, ...] = ()) -> Enter:
        groups = groups or self.some_groups()
        size = self.chance.choice(SIZES) if self.chance.random() < 0.6 else None
        body: list[Make | Enter] = [self.new(groups, size) for _ in range(self.chance.randint(1, 3))]
        if depth < 2 and self.chance.random() < 0.2:
            # Who is not in the inner scope's group would make its tensors in the outer scope.
            inner = self._enter(depth + 1, groups if self.rules.apart in self.groups else ())
            body.insert(self.chance.randint(0, len(body)), inner)
        fails = depth == 0 and self.chance.random() < 0.1
        scope = Enter(groups, tuple(body), fails=fails, exhausts=fails and self.chance.random() < 0.3)
        if scope.fails:
            self.failed |= {make.tensor for make in scope.made()}
        return scope

    def _make(self) -> Make:
        return self.new(())

    def _free(self) -> Free | None:
        if not self.live:
            return None
        return Free(tuple(self.chance.sample(self.live, self.chance.randint(1, min(3, len(self.live))))))

    def _collect(self) -> Collect | None:
        before = [
            step for step in self.steps if isinstance(step, Collect) and {step.source, step.target} <= {*self.live}
        ]
        if before and self.chance.random() < 0.4:
            return self.chance.choice(before)  # a place that the ranks have compared already
        group = self.chance.choice(self.groups)
        usable = [tensor for tensor in self.live if self.rules.hangs or self.certain(tensor, group)]
        name = self.chance.choice(("all_reduce", "all_reduce", "all_gather", "reduce_scatter"))
        if len(usable) < 1 + (name != "all_reduce"):
            return None
        source = self.chance.choice(usable)
        others = [tensor for tensor in usable if tensor != source]
        target = source if name == "all_reduce" else self.chance.choice(others)
        slot = self.chance.choice((0, 0, 0, 1))
        return Collect(group, name, source, target, slot, self.chance.random() < 0.3)

    def _beside(self) -> Beside | None:
        collect = self._collect()
        if collect is None:
            return None
        scope = self._enter(depth=2)
        return Beside(scope, collect) if not scope.fails else None

    def certain(self, tensor: int, group: str) -> bool:
        """Whether the tensor has a window of the group, or has none, whatever the pools hold."""
        return tensor not in self.failed and (not self.kinds[tensor] or group in self.kinds[tensor])

    def _sync(self) -> Sync:
        return Sync(self.some_groups())

    def _trim(self) -> Trim:
        # It lets go of all pools, so all ranks have to take part.
        return Trim(self.groups if self.rules.apart in self.groups else self.some_groups())


# --- divergences: each returns what the one rank does instead at some step, or None if it does not apply to it ---


def _swap(step: Step, _: int, chance: random.Random, __: _Drawing) -> list[Step] | None:
    if not isinstance(step, Enter):
        return None
    places = [place for place, part in enumerate(step.body) if isinstance(part, Make)]
    if len(places) < 2:
        return None
    first, second = chance.sample(places, 2)
    body = list(step.body)
    body[first], body[second] = body[second], body[first]
    return [replace(step, body=tuple(body))]


def _size(step: Step, _: int, chance: random.Random, __: _Drawing) -> list[Step] | None:
    if not isinstance(step, Enter):
        return None
    place, made = chance.choice([(place, part) for place, part in enumerate(step.body) if isinstance(part, Make)])
    body = list(step.body)
    body[place] = replace(made, size=chance.choice([size for size in SIZES if size != made.size]))
    return [replace(step, body=tuple(body))]


def _skip_scope(step: Step, _: int, __: random.Random, ___: _Drawing) -> list[Step] | None:
    return list(step.made()) if isinstance(step, Enter) else None


def _extra_scope(step: Step, _: int, __: random.Random, drawn: _Drawing) -> list[Step] | None:
    groups = drawn.some_groups()
    return [Enter(groups, (drawn.new(groups),)), step]


def _other_tensor(step: Step, index: int, chance: random.Random, drawn: _Drawing) -> list[Step] | None:
    if not isinstance(step, Collect):
        return None
    side = "target" if step.source == step.target else chance.choice(("source", "target"))
    instead_of = getattr(step, side)
    others = [
        tensor
        for tensor in drawn.alive[index]
        if tensor not in (step.source, step.target)
        and (
            drawn.rules.hangs or (drawn.certain(tensor, step.group) and drawn.kinds[tensor] == drawn.kinds[instead_of])
        )
    ]
    if not others:
        return None
    other = chance.choice(others)
    if step.source == step.target:
        return [replace(step, source=other, target=other)]
    return [replace(step, source=other) if side == "source" else replace(step, target=other)]


def _known_tensor(step: Step, index: int, chance: random.Random, drawn: _Drawing) -> list[Step] | None:
    """Take a tensor that was used at the same place of the same operation before."""
    if not isinstance(step, Collect) or step.name != "all_reduce":
        return None
    known = {
        before.source
        for before in drawn.steps[:index]
        if isinstance(before, Collect)
        and (before.group, before.name, before.slot) == (step.group, step.name, step.slot)
    }
    others = [tensor for tensor in drawn.alive[index] if tensor in known and tensor != step.source]
    others = [tensor for tensor in others if drawn.rules.hangs or drawn.kinds[tensor] == drawn.kinds[step.source]]
    if not others:
        return None
    other = chance.choice(others)
    return [replace(step, source=other, target=other)]


def _keep(step: Step, _: int, chance: random.Random, __: _Drawing) -> list[Step] | None:
    if not isinstance(step, Free):
        return None
    kept = chance.choice(step.tensors)
    return [Free(tuple(tensor for tensor in step.tensors if tensor != kept))]


def _skip_trim(step: Step, _: int, __: random.Random, ___: _Drawing) -> list[Step] | None:
    return [] if isinstance(step, Trim) else None


def _skip_sync(step: Step, _: int, __: random.Random, ___: _Drawing) -> list[Step] | None:
    return [] if isinstance(step, Sync) else None


def _exception(step: Step, _: int, __: random.Random, ___: _Drawing) -> list[Step] | None:
    return [replace(step, fails=True)] if isinstance(step, Enter) and not step.fails else None


def _exhausted(step: Step, _: int, __: random.Random, ___: _Drawing) -> list[Step] | None:
    return [replace(step, fails=True, exhausts=True)] if isinstance(step, Enter) and not step.fails else None


DIVERGENCES = {
    "swap": _swap,
    "size": _size,
    "skip scope": _skip_scope,
    "extra scope": _extra_scope,
    "other tensor": _other_tensor,
    "known tensor": _known_tensor,
    "keep": _keep,
    "skip trim": _skip_trim,
    "skip sync": _skip_sync,
    "exception": _exception,
    "out of memory": _exhausted,
}
MAY_HANG = ("skip scope",)


def diverge(schedule: Schedule, kind: str, rank: int, chance: random.Random, drawn: _Drawing, rules: Rules) -> None:
    """Let `rank` depart from the schedule at one step; leaves it as it is if there is no step for that kind."""
    if kind in MAY_HANG and not rules.hangs:
        return
    departed: list[list[Step]] = [[step] for step in schedule.steps]
    # Never the last, which finds what was not found before.
    for index in chance.sample(range(len(departed) - 1), len(departed) - 1):
        instead = DIVERGENCES[kind](schedule.steps[index], index, chance, drawn)
        if instead is not None:
            departed[index] = instead
            schedule.divergence, schedule.rank, schedule.departed = kind, rank, departed
            return
