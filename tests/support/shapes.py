"""Random programs of other shapes than those of :mod:`support.faulty`, with its faults: ``draw(seed, shape)``."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.faulty import FAULTS, MORE_FAULTS, STEPS, Act, Program, plant

Steps = list[list[list[Act]]]  # by rank and step


def draw(seed: int, shape: str, ends: bool) -> Program:
    """Return the program of a seed. `ends`: each rank ends in order behind its last call, and waits for nobody."""
    chance = random.Random(f"{shape} {seed}")
    ranks = chance.choice((3, 4, 5, 6, 8))
    everyone = list(range(ranks))
    groups = {"world": [everyone], "pp": [everyone]}
    if shape == "chain":
        groups["even"], groups["odd"] = (
            [everyone[max(at, 0) : at + 2] for at in range(-odd, ranks, 2)] for odd in (0, 1)
        )
    steps: Steps = [[[] for _ in range(STEPS)] for _ in range(ranks)]
    every, syncs = chance.choice((1, 2, 3)), chance.choice(("often", "step", "never"))
    SHAPES[shape](chance, ranks, steps)
    for own in steps:
        for number, step in enumerate(own):
            if number % every == every - 1:
                step.append(Act("all_reduce", "world", size=2))
            if syncs == "often":
                step[:] = [each for act in step for each in (act, Act("sync"))]
            elif syncs == "step":
                step.append(Act("sync"))
    last = [Act("sync"), *([Act("exit")] if ends else [])]
    program = Program(seed, ranks, groups, [[act for step in own for act in step] + last for own in steps])
    faults = (*FAULTS, *MORE_FAULTS)
    fault, culprits, when = faults[seed % len(faults)], list(range(ranks)), chance.choice((1, 3, 4, 5))
    chance.shuffle(culprits)
    plant(chance, program, steps, culprits, fault, when, last)
    program.told = f"{shape}, seed {seed}, {ranks} ranks, {syncs}: {program.fault} of rank {program.culprit}"
    return program


def _send(peer: int) -> Act:
    return Act("send", "pp", peer)


def _recv(peer: int) -> Act:
    return Act("recv", "pp", peer)


def _ring(chance: random.Random, ranks: int, steps: Steps) -> None:
    """Each rank sends to the next one, as in ring attention."""
    rounds = chance.randint(1, 3)
    for rank, own in enumerate(steps):
        for step in own:
            step += [Act("batch", "pp", inner=(_send((rank + 1) % ranks), _recv((rank - 1) % ranks)))] * rounds


def _interleaved(chance: random.Random, ranks: int, steps: Steps) -> None:
    """A pipeline with two chunks on each rank: the last stage sends to the first."""
    microbatches = chance.randint(1, 3)
    for rank, own in enumerate(steps):
        for step in own:
            for chunk in (0, 1) * microbatches:
                step += [_recv((rank - 1) % ranks)] * ((chunk, rank) != (0, 0))
                step += [_send((rank + 1) % ranks)] * ((chunk, rank) != (1, ranks - 1))


def _both_ways(chance: random.Random, ranks: int, steps: Steps) -> None:
    """Two pipelines in opposite directions."""
    microbatches = chance.randint(1, 3)
    for rank, own in enumerate(steps):
        before, after = [rank - 1] * (rank > 0), [rank + 1] * (rank < ranks - 1)
        for step in own:
            for one, other in ((before, after), (after, before)) * microbatches:
                step += [*map(_recv, one), *map(_send, other)]


def _gathered(chance: random.Random, ranks: int, steps: Steps) -> None:
    """Rank 0 gathers from all, and scatters to all."""
    rounds, others = chance.randint(1, 3), range(1, ranks)
    for rank, own in enumerate(steps):
        for step in own:
            for _ in range(rounds):
                for way in (_recv, _send) if rank == 0 else (_send, _recv):
                    step.append(Act("batch", "pp", inner=tuple(map(way, others))) if rank == 0 else way(0))


def _tree(_: random.Random, ranks: int, steps: Steps) -> None:
    """A sum goes up a tree of ranks."""
    for rank, own in enumerate(steps):
        for step in own:
            apart = 1
            while apart < ranks and rank % apart == 0:
                if rank % (2 * apart):
                    step.append(_send(rank - apart))
                elif rank + apart < ranks:
                    step.append(_recv(rank + apart))
                apart *= 2


def _served(chance: random.Random, ranks: int, steps: Steps) -> None:
    """Rank 0 takes from each rank in turn, and then gives to each in turn, as a parameter server does."""
    rounds, answers = chance.randint(1, 2), chance.choice(("last", "at once"))
    for rank, own in enumerate(steps):
        for step in own:
            for _ in range(rounds):
                if rank:
                    step += [_send(0), _recv(0)]
                elif answers == "at once":
                    step += [act for other in range(1, ranks) for act in (_recv(other), _send(other))]
                else:
                    step += [*map(_recv, range(1, ranks)), *map(_send, range(1, ranks))]


def _halo(_: random.Random, ranks: int, steps: Steps) -> None:
    """Neighbours exchange their borders: first those to the right of even ranks, then those to their left."""
    for rank, own in enumerate(steps):
        for step in own:
            for parity in (0, 1):
                peer = rank + 1 if rank % 2 == parity else rank - 1
                if 0 <= peer < ranks:
                    step.append(Act("batch", "pp", inner=(_send(peer), _recv(peer))))


def _cube(_: random.Random, ranks: int, steps: Steps) -> None:
    """Each rank exchanges with those whose number differs in one bit."""
    for rank, own in enumerate(steps):
        for step in own:
            for bit in (1, 2, 4):
                if (peer := rank ^ bit) < ranks:
                    step.append(Act("batch", "pp", inner=(_send(peer), _recv(peer))))


def _chain(chance: random.Random, ranks: int, steps: Steps) -> None:
    """Neighbours sum in groups of two that overlap."""
    rounds = chance.randint(1, 2)
    for rank, own in enumerate(steps):
        for step in own:
            for parity in (0, 1) * rounds:
                first = rank if rank % 2 == parity else rank - 1
                if 0 <= first < ranks - 1:
                    step.append(Act("all_reduce", ("even", "odd")[parity]))


SHAPES: dict[str, Callable[[random.Random, int, Steps], None]] = {
    "ring": _ring,
    "interleaved": _interleaved,
    "both ways": _both_ways,
    "gathered": _gathered,
    "tree": _tree,
    "served": _served,
    "halo": _halo,
    "cube": _cube,
    "chain": _chain,
}
