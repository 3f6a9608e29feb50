"""Random correct programs: what all ranks do, each in its groups, in one order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MOST_STEPS = 14


@dataclass(frozen=True)
class Step:
    """One thing that the members of a group do. `late`: seconds by which a rank comes late to it."""

    kind: str
    group: str
    tensors: tuple[int, ...] = ()  # numbers of tensors that it makes or uses
    sizes: tuple[int, ...] = ()  # elements
    ranks: tuple[int, ...] = ()  # who sends, who receives
    how: frozenset[str] = frozenset()
    late: tuple[float, ...] = ()


@dataclass
class Program:
    """The groups by name, with their ranks, and the steps."""

    groups: dict[str, tuple[int, ...]]
    steps: list[Step] = field(default_factory=list)


class _Draw:
    def __init__(self, seed: int, ranks: int) -> None:
        self.chance = random.Random(f"program {seed}")
        self.ranks = ranks
        everyone = tuple(range(ranks))
        self.program = Program({"world": everyone, "twin": everyone})
        if ranks > 2:
            self.program.groups["some"] = tuple(sorted(self.chance.sample(everyone, self.chance.randint(2, ranks - 1))))
        self.made = 0
        self.live: dict[int, tuple[str, int]] = {}  # tensors: group, elements

    def late(self) -> tuple[float, ...]:
        if self.chance.random() < 0.8:
            return ()
        return tuple(self.chance.choice((0.0, 0.0, 0.1, 0.7)) for _ in range(self.ranks))

    def add(self, kind: str, group: str, **more: object) -> None:
        self.program.steps.append(Step(kind, group, late=self.late(), **more))  # type: ignore[arg-type]

    def scope(self) -> None:
        group = self.chance.choice(list(self.program.groups))
        sizes = tuple(self.chance.choice((1000, 1 << 16, 1 << 19, 1 << 20)) for _ in range(self.chance.randint(1, 3)))
        numbers = tuple(range(self.made, self.made + len(sizes)))
        self.made += len(sizes)
        self.live |= {number: (group, size) for number, size in zip(numbers, sizes, strict=True)}
        how = frozenset(each for each in ("nested", "task", "ordinary first") if self.chance.random() < 0.15)
        self.add("scope", group, tensors=numbers, sizes=sizes, how=how)

    def use(self) -> None:
        number = self.chance.choice(list(self.live))
        group, size = self.live[number]
        members = self.program.groups[group]
        if self.chance.random() < 0.6 or len(members) < 2:
            kinds = ("async", "thread", "side stream", "out of place")
            how = frozenset(each for each in kinds if self.chance.random() < 0.2)
            self.add("all_reduce", group, tensors=(number,), sizes=(size,), how=how)
        else:
            ranks = tuple(self.chance.sample(members, 2))
            how = frozenset(each for each in ("async", "drop") if self.chance.random() < 0.5)
            self.add("send", group, tensors=(number,), sizes=(size,), ranks=ranks, how=how)
            if "drop" in how:
                del self.live[number]

    def other(self) -> None:
        kinds = ("free", "flight", "flight", "plain", "barrier", "trim", "sync", "empty_cache", "reserve", "restart")
        kind = self.chance.choice(kinds)
        if kind in ("free", "flight"):
            number = self.chance.choice(list(self.live))
            group, _ = self.live.pop(number)
            self.add(kind, group, tensors=(number,))
        elif kind == "restart":
            self.live.clear()
            self.add(kind, "world")
        else:
            group = "world" if kind == "empty_cache" else self.chance.choice(list(self.program.groups))
            self.add(kind, group, sizes=(self.chance.choice((64, 1 << 18)),))

    def __call__(self) -> Program:
        self.scope()
        for _ in range(self.chance.randint(3, MOST_STEPS)):
            act = self.chance.choices((self.scope, self.use, self.other), (3, 5, 2))[0]
            (act if self.live else self.scope)()
        return self.program


def draw(seed: int, ranks: int) -> Program:
    """Draw the program of a seed."""
    return _Draw(seed, ranks)()


def planted(program: Program, seed: int) -> tuple[int, int]:
    """Return a scope of the whole job and a rank that allocates something else there: a fault to be named."""
    chance = random.Random(f"fault {seed}")
    scopes = [at for at, step in enumerate(program.steps) if step.kind == "scope" and step.group in ("world", "twin")]
    return chance.choice(scopes) if scopes else -1, chance.randrange(len(program.groups["world"]))
