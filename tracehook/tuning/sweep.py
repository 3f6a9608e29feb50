"""The measurement: every collective, size and way of calling, in plain and in symmetric memory by turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import product

import torch
import torch.distributed as dist

import tracehook
from tracehook.tuning.arms import Arm
from tracehook.tuning.clock import Clock, calls_in_a_row, repeated, take_turns
from tracehook.tuning.crew import Crew, Progress
from tracehook.tuning.interval import is_decided, of_median
from tracehook.tuning.machine import hosts_of, this_machine
from tracehook.tuning.table import Point, Row, Table

# Passes through all sizes, and how many of them are for all: the others are for those that are not decided by then,
# with more samples, as long as there is time. Several passes, because what changes slowly, such as clocks, must not be
# taken for a difference of sizes, and because a kernel's time depends on where its buffers lie.
_PASSES = 8
_FIRST_PASSES = 2
_MORE_SAMPLES = 2
_SPARE = 8  # the device's free memory is so many times what the buffers take, or more


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    operations: Sequence[str]
    dtypes: Sequence[str]
    graphs: Sequence[bool]  # True: replayed from a CUDA graph
    sizes: Sequence[int]  # bytes, ascending
    groups: Mapping[str, int]  # number of ranks by name; of each name, all groups of neighbours work at once
    samples: int
    budget: float  # seconds after which no further pass over undecided sizes begins
    margin: float

    @property
    def count(self) -> int:
        """Number of points."""
        kinds = len(self.operations) * len(self.dtypes) * len(self.graphs)
        return kinds * len(self.sizes) * len(set(self.groups.values()))


def powers_of_two(smallest: int, largest: int) -> list[int]:
    """Return the powers of two from `smallest` to `largest`, both included if they are some."""
    return [1 << bit for bit in range(64) if smallest <= 1 << bit <= largest]


def sweep(plan: Plan, crew: Crew, progress: Progress) -> Table:
    """Measure. All ranks of the default group call this, and get equal tables.

    Raises:
        CrewError: a rank failed, is missing, or has wrong results.

    """
    machine = this_machine(torch.cuda.current_device())
    crew.doing = "comparing the machines"
    machines = crew.tell(list(astuple(machine)))
    different = f"has {machines[crew.rank]}, rank 0 has {machines[0]}: use machines that are alike"
    crew.agree(different if machines[crew.rank] != machines[0] else "")
    table, done, began = Table(machine, plan.margin), 0, time.monotonic()
    for ranks in dict.fromkeys(plan.groups.values()):
        crew.doing = f"making groups of {ranks} ranks"
        group, members = _group(crew, ranks)
        hosts = max(crew.tell(hosts_of(members)))
        for dtype in plan.dtypes:
            runner = _Runner(plan, crew, group, getattr(torch, dtype))
            every = [*product(plan.graphs, plan.operations, runner.sizes)]
            for number, graph in product(range(_PASSES), plan.graphs):
                todo = [*product(plan.operations, runner.sizes)]
                if number >= _FIRST_PASSES:
                    crew.doing = "comparing the time"
                    late = max(crew.tell(time.monotonic() - began)) > plan.budget
                    todo = [] if late else [which for which in todo if not runner.is_decided(graph, *which)]
                if not todo:
                    continue
                runner.make_buffers(graph=graph, reverse=number % 2 == 1)
                way = "in a graph" if graph else "called eagerly"
                for operation, nbytes in todo:
                    progress(f"{operation} of {nbytes} bytes", min(1.0, done / plan.count / (_FIRST_PASSES + 1)))
                    done += 1
                    crew.doing = f"{operation} of {nbytes} bytes of {dtype}, {way}, {ranks} ranks"
                    runner.measure(operation, graph, nbytes, 1 if number < _FIRST_PASSES else _MORE_SAMPLES)
            for graph, operation, nbytes in every:
                row = Row(operation, dtype, graph, ranks, hosts)
                table.rows.setdefault(row, []).append(runner.point(operation, graph, nbytes))
    return table


def _group(crew: Crew, ranks: int) -> tuple[dist.ProcessGroup, list[int]]:
    if ranks == crew.ranks:
        assert dist.group.WORLD is not None
        return dist.group.WORLD, list(range(ranks))
    own, members = None, []
    for first in range(0, crew.ranks, ranks):
        neighbours = list(range(first, first + ranks))
        made = dist.new_group(neighbours)
        if crew.rank in neighbours:
            own, members = made, neighbours
    assert own is not None
    return own, members


class _Runner:
    """The buffers of one type for one group."""

    def __init__(self, plan: Plan, crew: Crew, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        self._plan, self._crew, self._group, self._dtype = plan, crew, group, dtype
        self.samples: dict[tuple[str, bool, int], tuple[list[float], list[float]]] = {}  # plain, symmetric
        free = min(crew.tell(torch.cuda.mem_get_info()[0]))
        self.sizes = [size for size in plan.sizes if size * _SPARE <= free]
        crew.doing = f"making buffers of {dtype}"
        too_little = f"has {free} bytes free: a buffer of {plan.sizes[0]} bytes wants {_SPARE} times as much"
        crew.agree("" if self.sizes else too_little)
        self._aligner = torch.zeros(1, device="cuda")
        dist.all_reduce(self._aligner)
        dist.all_reduce(self._aligner, group=group)
        # The device of no rank goes on before those of all ranks are there.
        self._clock = Clock(crew, lambda: dist.all_reduce(self._aligner))
        self._arms: dict[int, list[Arm]] = {}

    def make_buffers(self, *, graph: bool, reverse: bool) -> None:
        """Make the buffers of all sizes, elsewhere than before: a kernel's time depends a little on where they lie."""
        self._crew.doing, failure = f"making buffers of {self._dtype}", ""
        self._clock.settle()
        self._arms.clear()
        gc.collect()  # all ranks give back the same memory before they ask for more
        try:
            for size in sorted(self.sizes, reverse=reverse):
                self._arms[size] = [self._arm(size, graph, symmetric=kind) for kind in (False, True)]
        except (RuntimeError, torch.OutOfMemoryError) as problem:
            failure = " ".join(str(problem).split())
        self._crew.agree(failure)

    def _arm(self, nbytes: int, graph: bool, *, symmetric: bool) -> Arm:
        scope = tracehook.symmetric(self._group, graph=graph, disabled=not symmetric)
        made = Arm(self._group, nbytes, self._dtype, scope)
        made.require(symmetric=symmetric)
        return made

    def point(self, operation: str, graph: bool, nbytes: int) -> Point:
        """Return what was measured so far; equal on all ranks."""
        return _point(nbytes, *self.samples[operation, graph, nbytes])

    def is_decided(self, graph: bool, operation: str, nbytes: int) -> bool:
        """Whether the samples so far are enough to choose by; equal on all ranks."""
        plain, symmetric = self.samples[operation, graph, nbytes]
        return is_decided(of_median(_quotients(plain, symmetric)), self._plan.margin)

    def measure(self, operation: str, graph: bool, nbytes: int, times: int) -> None:
        """Add to the samples of one size, `times` as many as in a first pass."""
        arms, calls = self._arms[nbytes], calls_in_a_row(nbytes)
        wrong = [arm.check(operation, self._clock.settle) for arm in arms]
        self._crew.agree("; ".join(filter(None, wrong)))
        acts = []
        for arm in arms:
            arm.clear(operation)
            self._clock.settle()  # a capture waits for the device, also where a rank is missing
            acts.append(repeated(partial(arm.call, operation), calls, graph=graph))
        taken = take_turns(self._clock, acts, calls, times * -(-self._plan.samples // _FIRST_PASSES))
        all_samples = self.samples.setdefault((operation, graph, nbytes), ([], []))
        for mine, samples in zip(taken, all_samples, strict=True):
            samples += slowest(self._crew.tell(mine))


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the largest of all ranks' samples, one after the other."""
    return [max(times) for times in zip(*by_rank, strict=True)]


def _quotients(plain: Sequence[float], symmetric: Sequence[float]) -> list[float]:
    """Return plain / symmetric, turn by turn: what changes with time touches both."""
    return [a / b for a, b in zip(plain, symmetric, strict=True)]


def _point(nbytes: int, plain: Sequence[float], symmetric: Sequence[float]) -> Point:
    low, gain, high = statistics.quantiles(_quotients(plain, symmetric), n=4)
    middles = round(statistics.median(plain), 3), round(statistics.median(symmetric), 3)
    return Point(nbytes, *middles, round(gain, 4), round(high - low, 4))
