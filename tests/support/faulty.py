"""Random programs of several parallelisms in which one rank does wrong: ``draw(seed)``. Nothing here needs torch.

A program is what each rank does, one act after the other. ``faulty_run.py`` does it with torch; ``support/played.py``
plays it without any process.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

STEPS = 7
FAULTS = ("early", "leave", "skip", "receive", "swap", "stop", "spin", "forget")
MORE_FAULTS = (
    *("twice", "group", "peer", "part", "turn", "late", "step", "again", "fewer", "more", "kernel", "exit", "stranger"),
)
_STRANGER = -2  # in place of a peer: any other rank
SHAPES = (  # stages, replicas, ranks of tensor parallelism
    *((1, 2, 1), (2, 1, 1), (1, 2, 2), (2, 2, 1), (2, 1, 2), (4, 1, 1), (1, 4, 1), (3, 2, 1)),
    *((2, 2, 2), (4, 2, 1), (4, 1, 2), (2, 4, 1), (1, 4, 2), (8, 1, 1)),
)


class Act(NamedTuple):
    """One thing that a rank does.

    ``all_reduce`` of a group, ``send`` and ``recv`` with a rank, ``batch`` of such, ``sync``: the host waits for the
    device; ``after``: a stream waits for what another one has to do by now; ``make`` a group of all ranks; ``kernel``:
    the device begins one that does not end; ``spin``, ``stop``, ``exit``: no act follows.
    """

    kind: str
    group: str = ""
    peer: int = -1  # a global rank
    stream: str = "main"
    size: int = 1
    inner: tuple[Act, ...] = ()


@dataclass
class Program:
    """What one seed says."""

    seed: int
    ranks: int
    groups: dict[str, list[list[int]]]  # by name; every rank makes all of one name, in order
    acts: list[list[Act]]  # by rank
    fault: str = ""
    culprit: int = -1
    told: str = ""

    def members(self, group: str, rank: int) -> list[int]:
        """Return the ranks of the group of that name that has this one."""
        return next(ranks for ranks in self.groups[group] if rank in ranks)


@dataclass
class _Style:
    """What all ranks of a program have in common."""

    shape: tuple[int, int, int]
    microbatches: int
    one_f_one_b: bool
    layers: int
    buckets: int
    side: bool  # gradients on a stream of their own
    loss_every: int
    syncs: str  # often, step, never, first: only the first rank does
    makes: int  # in which step a group is made; -1: in none


def draw(seed: int, most: int = 8, faults: Sequence[str] = FAULTS) -> Program:
    """Return the program of a seed, of at most that number of ranks, with one of these faults."""
    chance = random.Random(seed)
    shape = chance.choice([each for each in SHAPES if each[0] * each[1] * each[2] <= most])
    style = _Style(
        shape=shape,
        microbatches=chance.randint(1, 4),
        one_f_one_b=chance.random() < 0.6,
        layers=chance.randint(1, 2),
        buckets=chance.randint(1, 3),
        side=chance.random() < 0.4,
        loss_every=chance.choice((1, 2)),
        syncs=chance.choice(("often", "step", "step", "never", "first")),
        makes=chance.choice((-1, -1, 2, 4)),
    )
    fault = faults[seed % len(faults)]
    is_about_making = fault in ("forget", "late")
    if is_about_making:
        style.makes = chance.choice((2, 4))
    ranks = shape[0] * shape[1] * shape[2]
    steps = [[_step(style, rank, step) for step in range(STEPS)] for rank in range(ranks)]
    culprits = list(range(ranks))
    chance.shuffle(culprits)
    when = style.makes if is_about_making else chance.choice((1, 3, 4, 5))
    acts = [[act for step in steps[rank] for act in step] + [Act("sync")] for rank in range(ranks)]
    program = Program(seed, ranks, _groups(shape), acts)
    plant(chance, program, steps, culprits, fault, when, [Act("sync")])
    program.told = f"seed {seed}: {style}; {program.fault} of rank {program.culprit} in step {when}"
    return program


def plant(
    chance: random.Random,
    program: Program,
    steps: Sequence[list[list[Act]]],
    culprits: Sequence[int],
    fault: str,
    when: int,
    last: Sequence[Act],
) -> None:
    """Let the first of these ranks that can do so go wrong in a step; `last`: what each does behind its last step."""
    for culprit in culprits:
        changed = _CHANGES[fault](chance, steps[culprit], when)
        if changed is not None:
            if fault == "stranger":
                others = [rank for rank in program.members("pp", culprit) if rank != culprit]
                peer = chance.choice(others)
                changed = [act._replace(peer=peer) if act.peer == _STRANGER else act for act in changed]
            program.acts[culprit] = [*changed, *last]
            program.fault, program.culprit = fault, culprit
            return


def _groups(shape: tuple[int, int, int]) -> dict[str, list[list[int]]]:
    stages, replicas, width = shape
    world = list(range(stages * replicas * width))
    groups = {"world": [world]}
    if width > 1:
        groups["tp"] = [world[first : first + width] for first in range(0, len(world), width)]
    if replicas > 1:
        groups["dp"] = [
            [(stage * replicas + each) * width + place for each in range(replicas)]
            for stage in range(stages)
            for place in range(width)
        ]
    if stages > 1:
        across = replicas * width
        groups["pp"] = [[stage * across + place for stage in range(stages)] for place in range(across)]
    return groups


def _step(style: _Style, rank: int, step: int) -> list[Act]:
    stages, replicas, width = style.shape
    across = replicas * width
    stage = rank // across
    acts: list[Act] = []

    def layers() -> None:
        if width > 1:
            acts.extend(Act("all_reduce", "tp", size=2) for _ in range(style.layers))

    before, after = rank - across, rank + across
    first, last = stage == 0, stage == stages - 1

    def exchange(*wanted: tuple[str, int, bool]) -> None:
        inner = tuple(Act(kind, "pp", peer) for kind, peer, there in wanted if there)
        if len(inner) == 1:
            acts.append(inner[0])
        elif inner:
            acts.append(Act("batch", "pp", inner=inner))

    if stages > 1 and style.one_f_one_b:
        ahead = min(stages - 1 - stage, style.microbatches)
        left = style.microbatches - ahead
        for _ in range(ahead):
            exchange(("recv", before, not first))
            layers()
            exchange(("send", after, not last))
        if left:
            exchange(("recv", before, not first))
        for number in range(left):
            layers()
            exchange(("send", after, not last), ("recv", after, not last))
            layers()
            more = number < left - 1
            exchange(("send", before, not first), ("recv", before, not first and more))
        for _ in range(ahead):
            exchange(("recv", after, not last))
            layers()
            exchange(("send", before, not first))
    else:
        for one, other, there, back in ((before, after, not first, not last), (after, before, not last, not first)):
            for _ in range(style.microbatches):
                exchange(("recv", one, stages > 1 and there))
                layers()
                exchange(("send", other, stages > 1 and back))
    if replicas > 1:
        stream = "side" if style.side else "main"
        for number in range(style.buckets):
            if style.side:
                acts.append(Act("after", "main", stream="side"))
            acts.append(Act("all_reduce", "dp", stream=stream, size=3 + number))
        if style.side:
            acts.append(Act("after", "side", stream="main"))
    if step % style.loss_every == 0 or replicas == stages == 1:
        acts.append(Act("all_reduce", "world"))
    if step == style.makes:
        acts.append(Act("make"))
        acts.append(Act("all_reduce", "made"))
    if style.syncs == "often":
        acts = [each for act in acts for each in (act, Act("sync"))]
    elif style.syncs == "step" or (style.syncs == "first" and rank == 0):
        acts.append(Act("sync"))
    return acts


# --- faults: each returns the acts of the rank that does wrong, or None if this rank cannot ---

Change = Callable[[random.Random, list[list[Act]], int], "list[Act] | None"]
Renew = Callable[[Act], "list[Act] | None"]


def _joined(steps: list[list[Act]], when: int, changed: list[Act]) -> list[Act]:
    return [act for number, step in enumerate(steps) for act in (changed if number == when else step)]


def _is_call(act: Act) -> bool:
    return act.kind in ("all_reduce", "send", "recv", "batch")


def _place(chance: random.Random, step: list[Act]) -> int:
    return chance.choice([place for place, act in enumerate(step) if _is_call(act)] or [0])


def _early(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    place = _place(chance, steps[when])
    return _joined(steps, when, steps[when][:place])


def _leave(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    place = _place(chance, steps[when])
    return [*_joined(steps[:when], when, []), *steps[when][:place]]


def _skip(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    place = _place(chance, steps[when])
    return _joined(steps, when, steps[when][:place] + steps[when][place + 1 :])


def _exchanged(chance: random.Random, steps: list[list[Act]], when: int, wanted: set[str]) -> list[Act] | None:
    step = list(steps[when])
    calls = [place for place, act in enumerate(step) if _is_call(act)]
    pairs = [
        (one, other)
        for one, other in itertools.pairwise(calls)
        if (not wanted and step[one] != step[other] and step[one].stream == step[other].stream)
        or {step[one].kind, step[other].kind} == wanted
    ]
    if not pairs:
        return None
    one, other = chance.choice(pairs)
    step[one], step[other] = step[other], step[one]
    return _joined(steps, when, step)


def _receive(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    return _exchanged(chance, steps, when, {"send", "recv"})


def _swap(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    return _exchanged(chance, steps, when, set())


def _ends(kind: str) -> Change:
    def ends(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
        place = chance.randrange(len(steps[when]) + 1)
        return [*_joined(steps[:when], when, []), *steps[when][:place], Act(kind)]

    return ends


def _kernel(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    place = _place(chance, steps[when])
    return _joined(steps, when, [*steps[when][:place], Act("kernel"), *steps[when][place:]])


def _replaced(chance: random.Random, steps: list[list[Act]], when: int, kinds: str, new: Renew) -> list[Act] | None:
    """Put what `new` makes of it in the place of one call of these kinds, if it makes anything of one."""
    step = list(steps[when])
    found = [
        (place, made) for place, act in enumerate(step) if act.kind in kinds.split() and (made := new(act)) is not None
    ]
    if not found:
        return None
    place, made = chance.choice(found)
    step[place : place + 1] = made
    return _joined(steps, when, step)


def _twice(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    return _replaced(chance, steps, when, "all_reduce send recv batch", lambda act: [act, act])


def _turn(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    other = {"send": "recv", "recv": "send"}
    return _replaced(chance, steps, when, "send recv", lambda act: [act._replace(kind=other[act.kind])])


def _part(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    return _replaced(
        chance, steps, when, "batch", lambda act: [act._replace(inner=act.inner[chance.randrange(2) :][:1])]
    )


def _group(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    groups = sorted({act.group for step in steps for act in step if act.kind == "all_reduce"} - {"made"})

    def elsewhere(act: Act) -> list[Act] | None:
        others = [name for name in groups if name != act.group]
        return [act._replace(group=chance.choice(others))] if others and act.group in groups else None

    return _replaced(chance, steps, when, "all_reduce", elsewhere)


def _peer(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    peers = sorted({each.peer for step in steps for act in step for each in (act, *act.inner)} - {-1})

    def elsewhere(act: Act) -> list[Act] | None:
        others = [peer for peer in peers if peer != act.peer]
        return [act._replace(peer=chance.choice(others))] if others else None

    return _replaced(chance, steps, when, "send recv", elsewhere)


def _stranger(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    return _replaced(chance, steps, when, "send recv", lambda act: [act._replace(peer=_STRANGER)])


def _late(_: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    made = [act for act in steps[when] if act.kind == "make" or act.group == "made"]
    rest = [act for act in steps[when] if act not in made]
    return [*_joined(steps[:when], when, []), *rest, *steps[when + 1], *made, *_joined(steps[when + 2 :], -1, [])]


def _several(repeats: int, whole: bool) -> Change:
    """Several calls in a row, or all of a step, are made so many times; but a group is made once."""

    def several(chance: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
        step = steps[when]
        first, last = sorted(chance.sample(range(len(step) + 1), 2)) if not whole else (0, len(step))
        again = step[first:last]
        makes = any(act.kind == "make" for act in again)
        return None if makes else _joined(steps, when, step[:first] + again * repeats + step[last:])

    return several


def _forget(_: random.Random, steps: list[list[Act]], when: int) -> list[Act] | None:
    without = [act for act in steps[when] if act.kind != "make" and act.group != "made"]
    return _joined(steps, when, without) if len(without) < len(steps[when]) else None


_CHANGES: dict[str, Change] = {
    "early": _early,
    "leave": _leave,
    "skip": _skip,
    "receive": _receive,
    "swap": _swap,
    "stop": _ends("stop"),
    "spin": _ends("spin"),
    "forget": _forget,
    "twice": _twice,
    "group": _group,
    "peer": _peer,
    "part": _part,
    "turn": _turn,
    "late": _late,
    "step": _several(0, whole=True),
    "again": _several(2, whole=True),
    "fewer": _several(0, whole=False),
    "more": _several(2, whole=False),
    "kernel": _kernel,
    "exit": _ends("exit"),
    "stranger": _stranger,
}
