"""Random correct programs: what all ranks do, each in its groups, in one order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from launch_settings import ROUND

MOST_STEPS = 12
SIZES = (1000, 1000, 1 << 16, 1 << 18, 1 << 19, 1 << 20)
LARGE = 3 << 20  # has a segment, and so a window, of its own
HOW_CAPTURE = ("sent", "gathered", "broadcast")  # with the tensor of a scope on one side only
HOW_SCOPE = ("nested", "task", "ordinary first", "thread", "generator", "inside another", "both", "for graphs")
HOW_REDUCE = ("async", "thread", "side stream", "out of place", "functional", "helper", "other group", "operator")
OTHERS = (
    *("free", "flight", "flight", "plain", "barrier", "trim"),
    *("sync", "empty_cache", "reserve", "restart", "ask"),
)
OTHERS_IN_LANES = ("free", "plain", "barrier", "sync", "reserve", "ask", "trim", "empty_cache")
# What two threads cannot both do: they have one side stream, one pair of workers, and one twin of each group.
NOT_IN_LANES = frozenset({"side stream", "thread", "other group", "inside another", "both", "ordinary first"})
LATE = (0.0, 0.0, 0.015, 0.03)  # seconds; the short patience of surroundings.py is over before


@dataclass(frozen=True)
class Step:
    """One thing that the members of a group do. `late`: seconds by which a rank comes late to it.

    `ranks`: positions in the group, of who sends and who receives. `tensors`: numbers of tensors,
    or of a graph. `second`: the group of the second tensor.
    """

    kind: str
    group: str
    tensors: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()  # elements
    ranks: tuple[int, ...] = ()
    how: frozenset[str] = frozenset()
    late: tuple[float, ...] = ()
    second: str = ""
    lanes: tuple[tuple[Step, ...], ...] = ()


@dataclass
class Program:
    """The groups by name, and the steps. A group has parts: each rank is in one of them, or in none."""

    groups: dict[str, tuple[tuple[int, ...], ...]]
    steps: list[Step] = field(default_factory=list)

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """Return the ranks that meet a rank in a group; none if the rank is not in it."""
        return next((part for part in self.groups[group] if rank in part), ())


def _groups(chance: random.Random, ranks: int, is_bound: bool) -> dict[str, tuple[tuple[int, ...], ...]]:
    everyone = tuple(range(ranks))
    made: dict[str, tuple[tuple[int, ...], ...]] = {"world": (everyone,), "twin": (everyone,)}
    mixed = chance.sample(everyone, ranks)
    cut = chance.randint(1, ranks)
    parts = tuple(tuple(sorted(part)) for part in (mixed[:cut], mixed[cut:]) if part)
    if ranks > 2:
        made["some"] = (tuple(sorted(chance.sample(everyone, chance.randint(2, ranks - 1)))),)
    if ranks > 1 and chance.random() < 0.3:
        made["parts"] = parts
    if ranks > 1 and is_bound and chance.random() < 0.3:
        made["split"] = parts
    return made


class _Draw:
    def __init__(self, seed: int, ranks: int, is_bound: bool) -> None:
        self.chance = random.Random(f"program {seed}")
        # To import DTensor and FSDP2 takes seconds: only every fourth job does so.
        self.has_layers = seed // ROUND % 4 == 2
        self.ranks = ranks
        self.program = Program(_groups(self.chance, ranks, is_bound))
        self.made = 0
        self.live: dict[int, tuple[str, int]] = {}  # tensors: group, elements
        self.under_way: dict[int, tuple[str, int]] = {}  # tensors that a collective uses meanwhile
        self.graphs: dict[int, tuple[str, int]] = {}
        self.lane_of = ""  # the group of the lane that is drawn

    # --- chances ---

    def some(self, what: tuple[str, ...], chance: float) -> frozenset[str]:
        drawn = frozenset(each for each in what if self.chance.random() < chance)
        return drawn - NOT_IN_LANES if self.lane_of else drawn

    def late(self) -> tuple[float, ...]:
        if self.chance.random() < 0.8:
            return ()
        return tuple(self.chance.choice(LATE) for _ in range(self.ranks))

    def add(self, kind: str, group: str, **more: object) -> None:
        self.program.steps.append(Step(kind, group, late=self.late(), **more))  # type: ignore[arg-type]

    def any_group(self) -> str:
        return self.lane_of or self.chance.choice(list(self.program.groups))

    def number(self) -> int:
        self.made += 1
        return self.made - 1

    # --- steps ---

    def scope(self) -> None:
        group = self.any_group()
        sizes = tuple(self.chance.choice(SIZES) for _ in range(self.chance.randint(1, 3)))
        numbers = tuple(self.number() for _ in sizes)
        how = self.some(HOW_SCOPE, 0.12)
        if group not in ("world", "twin"):
            how -= {"inside another", "both"}
        if self.chance.random() < 0.06:
            self.add("failing", group, sizes=sizes)
            return
        self.live |= {number: (group, size) for number, size in zip(numbers, sizes, strict=True)}
        self.add("scope", group, tensors=numbers, sizes=sizes, how=how)

    def use(self) -> None:
        number = self.chance.choice(list(self.live))
        group, size = self.live[number]
        if self.chance.random() < 0.4:
            how = self.some(HOW_REDUCE, 0.15) - (frozenset() if self.has_layers else {"functional"})
            self.add("all_reduce", group, tensors=(number,), sizes=(size,), how=how)
            return
        kinds = ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "ring", "start", "send", "send"]
        kind = self.chance.choice(kinds + ["dtensor", "dtensor"] * self.has_layers)
        kind = "ring" if kind == "start" and self.lane_of else kind
        places = tuple(self.chance.sample(range(self.ranks), min(2, self.ranks)))
        how = self.some(("async", "drop", "in place", "side stream"), 0.4)
        if kind in ("broadcast", "ring", "send"):
            how |= self.some(("other group",), 0.2)
        self.add(kind, group, tensors=(number,), sizes=(size,), ranks=places, how=how)
        if kind == "start":
            self.under_way[number] = self.live.pop(number)
        elif kind == "send" and "drop" in how:
            del self.live[number]

    def finish(self) -> None:
        number = self.chance.choice(list(self.under_way))
        self.live[number] = self.under_way.pop(number)
        group, size = self.live[number]
        self.add("finish", group, tensors=(number,), sizes=(size,))

    def other(self) -> None:
        kind = self.chance.choice(OTHERS_IN_LANES if self.lane_of else OTHERS)
        if kind in ("free", "flight"):
            number = self.chance.choice(list(self.live))
            group, _ = self.live.pop(number)
            self.add(kind, group, tensors=(number,), how=self.some(("thread", "cycle"), 0.3))
        elif kind == "restart":
            while self.under_way:
                self.finish()
            self.live.clear()
            self.graphs.clear()
            self.add(kind, "world")
        else:
            # Ranks that trim a subgroup alone have other memory afterwards.
            is_for_all = kind in ("empty_cache", "trim") and not self.lane_of
            group = self.chance.choice(("world", "twin")) if is_for_all else self.any_group()
            how = self.some(("graph", "gather", "exchange", "pass on"), 0.3)
            asked = tuple(number for number, (its, _) in self.live.items() if its == group) if kind == "ask" else ()
            self.add(kind, group, tensors=asked, sizes=(self.chance.choice((64, 1 << 18)),), how=how)

    def rare(self) -> None:
        kinds = ["capture", "capture", "replay", "own", "own", "threads", "threads", "peers", "peers"]
        kinds += ["beside", "crowd"] * 4
        kind = self.chance.choice(kinds + ["fsdp", "ddp"] * 4 * self.has_layers)
        group, size = self.any_group(), self.chance.choice(SIZES)
        if kind == "capture":
            number = self.number()
            self.graphs[number] = group, size
            self.add(kind, group, tensors=(number,), sizes=(size,), how=self.some(HOW_CAPTURE, 0.3))
        elif kind == "replay":
            if self.graphs:
                number = self.chance.choice(list(self.graphs))
                group, size = self.graphs[number]
                how = self.some(("reset",), 0.3)
                self.add(kind, group, tensors=(number,), sizes=(size,), how=how)
                if how:
                    del self.graphs[number]
        elif kind == "fsdp":
            self.add(kind, self.chance.choice(("world", "twin")), how=self.some(("sum", "train"), 0.5))
        elif kind == "ddp":
            self.add(kind, group, how=self.some(("view",), 0.5))
        elif kind == "own":
            self.add(kind, "world", sizes=(size,), how=self.some(("kept", "abort", "twice"), 0.3))
        else:
            getattr(self, kind)()

    def threads(self) -> None:
        """Two threads use a tensor each, in groups of their own."""
        first = self.chance.choice(list(self.live))
        others = [number for number, (group, _) in self.live.items() if group != self.live[first][0]]
        if others:
            second = self.chance.choice(others)
            (group, size), (twin, more) = self.live[first], self.live[second]
            self.add("threads", group, tensors=(first, second), sizes=(size, more), second=twin)

    def peers(self) -> None:
        """Each rank reads a tensor of another one's; "held": and gives up its own before the last reads are undone."""
        number = self.chance.choice(list(self.live))
        group, size = self.live[number]
        how = self.some(("ordinary", "held", "on"), 0.4)
        if "held" in how:
            del self.live[number]
        self.add("peers", group, tensors=(number,), sizes=(size,), how=how)

    def beside(self) -> None:
        """One thread makes a tensor in a scope, and another one uses a tensor, perhaps in the same group."""
        used = self.chance.choice(list(self.live))
        uses, more = self.live[used]
        if uses in ("world", "twin"):  # of its scope, or another one of the same ranks
            uses = self.chance.choice(("world", "twin"))
        group, number = self.chance.choice((uses, self.any_group())), self.number()
        size = self.chance.choice((more, LARGE))
        self.live[number] = group, size
        how = self.some(("both",), 0.3) if group in ("world", "twin") else frozenset()
        self.add("beside", group, tensors=(number, used), sizes=(size, more), second=uses, how=how)

    def crowd(self) -> None:
        """Two or three threads, each with a group: they make tensors in scopes, use them, and free them."""
        names = list(self.program.groups)
        lanes = [self.lane(name) for name in self.chance.sample(names, min(len(names), self.chance.choice((2, 2, 3))))]
        touched = sorted({number for lane in lanes for step in lane for number in step.tensors})
        self.add("crowd", "world", tensors=tuple(touched), lanes=tuple(lanes))

    def lane(self, group: str) -> tuple[Step, ...]:
        """Draw the steps of one thread."""
        steps, live = self.program.steps, self.live
        self.program.steps, self.lane_of = [], group
        self.live = {number: found for number, found in live.items() if found[0] == group}
        others = {number: found for number, found in live.items() if found[0] != group}
        for _ in range(self.chance.randint(2, 5)):
            act = self.chance.choices((self.scope, self.use, self.other), (3, 5, 2))[0]
            (act if self.live else self.scope)()
        drawn, self.program.steps, self.lane_of = tuple(self.program.steps), steps, ""
        self.live |= others
        return drawn

    def __call__(self) -> Program:
        self.scope()
        for _ in range(self.chance.randint(3, MOST_STEPS)):
            if self.under_way and self.chance.random() < 0.3:
                self.finish()
            act = self.chance.choices((self.scope, self.use, self.other, self.rare), (3, 6, 2, 1.2))[0]
            (act if self.live else self.scope)()
        while self.under_way:
            self.finish()
        return self.program


def draw(seed: int, ranks: int, is_bound: bool = True) -> Program:
    """Draw the program of a seed. `is_bound`: the groups know their devices, so one can be split."""
    return _Draw(seed, ranks, is_bound)()
