"""The measurement: every call, size and way of calling, in plain memory and in another one by turns."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import tracehook
from tracehook import _core
from tracehook.hook import registration
from tracehook.hook.groups import pointer_of
from tracehook.settings import from_environment
from tracehook.tuning.arms import Arm
from tracehook.tuning.clock import Clock, calls_in_a_row, is_decided, of_median, repeated, take_turns
from tracehook.tuning.machine import hosts_of, this_machine
from tracehook.tuning.registered import RegisteredArm, buffers_of
from tracehook.tuning.table import Point, RegisteredPoint, Row, Table
from tracehook.tuning.thresholds import thresholds
from tracehook.tuning.tuner_run import Progress, TunerRun

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
    registered: Sequence[str] = ()  # calls to measure on registered memory

    @property
    def count(self) -> int:
        """Number of points without those on registered memory."""
        return len(self.operations) * self._count_of_one

    @property
    def count_of_all(self) -> int:
        """Number of points."""
        return (len(self.operations) + len(self.registered)) * self._count_of_one

    @property
    def _count_of_one(self) -> int:
        return len(self.dtypes) * len(self.graphs) * len(self.sizes) * len(set(self.groups.values()))


def sweep(plan: Plan, run: TunerRun, progress: Progress) -> Table:
    """Measure. All ranks of the default group call this, and get equal tables.

    Raises:
        RegistrationError: a rank failed, is missing, or has wrong results.

    """
    machine = this_machine(torch.cuda.current_device())
    run.doing = "comparing the machines"
    machines = run.tell(list(astuple(machine)))
    different = f"has {machines[run.rank]}, rank 0 has {machines[0]}: use machines that are alike"
    run.agree(different if machines[run.rank] != machines[0] else "")
    table, groups = Table(machine, plan.margin), []
    for ranks in dict.fromkeys(plan.groups.values()):
        run.doing = f"making groups of {ranks} ranks"
        group, members = _group(run, ranks)
        groups.append((group, ranks, max(run.tell(hosts_of(members)))))
    progress = _counted(progress, plan.count_of_all * (_FIRST_PASSES + 1))
    if plan.registered:
        on_one_host = [each for each in groups if each[2] == 1]
        _measure_kind(plan, run, on_one_host, progress, _registered(plan.registered), table.registered)
        # What follows is to know plain memory as a job that has this table knows it.
        registration.choose_calls(_core, from_environment()[0], thresholds(table))
    _measure_kind(plan, run, groups, progress, _symmetric(plan.operations), table.rows)
    return table


def _counted(progress: Progress, steps: int) -> Progress:
    """Return what tells how far the measurement is, at the beginning of each step."""
    done = itertools.count()
    return lambda doing, _: progress(doing, min(1.0, next(done) / steps))


class _Kind(NamedTuple):
    """What is compared with plain memory."""

    operations: Sequence[str]
    arms: Callable[[dist.ProcessGroup, int, torch.dtype, bool], Sequence[Arm | RegisteredArm]]  # plain memory first
    point: Callable[..., Any]


def _symmetric(operations: Sequence[str]) -> _Kind:
    def arms(group: dist.ProcessGroup, nbytes: int, dtype: torch.dtype, graph: bool) -> Iterator[Arm]:
        for symmetric in (False, True):
            scope = tracehook.symmetric(group, graph=graph, disabled=not symmetric)
            made = Arm(group, nbytes, dtype, scope)
            made.require(symmetric=symmetric)
            yield made

    return _Kind(operations, lambda *about: [*arms(*about)], Point)


def _registered(operations: Sequence[str]) -> _Kind:
    def arms(group: dist.ProcessGroup, nbytes: int, dtype: torch.dtype, _: bool) -> Sequence[RegisteredArm]:
        if not any(
            row["pointer"] == pointer_of(group) and row["at_calls"] and row["one_host"] for row in _core.communicators()
        ):
            raise RuntimeError("tracehook registers nothing at the calls of this group: set SYMM_REGISTER_LOCAL=own")
        buffers = buffers_of(nbytes, dist.get_world_size(group), dtype)
        return [RegisteredArm(group, buffers, registered=which) for which in (False, True)]

    return _Kind(operations, arms, RegisteredPoint)


def _measure_kind(
    plan: Plan,
    run: TunerRun,
    groups: Sequence[tuple[dist.ProcessGroup, int, int]],
    progress: Progress,
    kind: _Kind,
    rows: dict[Row, list[Any]],
) -> None:
    """Measure one kind of memory for all groups (with their numbers of ranks and hosts), and add the rows."""
    began = time.monotonic()
    for (group, ranks, hosts), dtype in product(groups, plan.dtypes):
        runner = _Runner(plan, run, group, getattr(torch, dtype), kind)
        every = [*product(plan.graphs, kind.operations, runner.sizes)]
        for number, graph in product(range(_PASSES), plan.graphs):
            todo = [*product(kind.operations, runner.sizes)]
            if number >= _FIRST_PASSES:
                run.doing = "comparing the time"
                late = max(run.tell(time.monotonic() - began)) > plan.budget
                todo = [] if late else [which for which in todo if not runner.is_decided(graph, *which)]
            if not todo:
                continue
            runner.make_buffers(graph=graph, reverse=number % 2 == 1)
            way = "in a graph" if graph else "called eagerly"
            for operation, nbytes in todo:
                progress(f"{operation} of {nbytes} bytes", 0.0)
                run.doing = f"{operation} of {nbytes} bytes of {dtype}, {way}, {ranks} ranks"
                runner.measure(operation, graph, nbytes, 1 if number < _FIRST_PASSES else _MORE_SAMPLES)
        for graph, operation, nbytes in every:
            row = Row(operation, dtype, graph, ranks, hosts)
            rows.setdefault(row, []).append(runner.point(operation, graph, nbytes))


def _group(run: TunerRun, ranks: int) -> tuple[dist.ProcessGroup, list[int]]:
    if ranks == run.ranks:
        assert dist.group.WORLD is not None
        return dist.group.WORLD, list(range(ranks))
    own, members = None, []
    for first in range(0, run.ranks, ranks):
        neighbours = list(range(first, first + ranks))
        made = dist.new_group(neighbours)
        if run.rank in neighbours:
            own, members = made, neighbours
    assert own is not None
    return own, members


class _Runner:
    """The buffers of one type for one group."""

    def __init__(self, plan: Plan, run: TunerRun, group: dist.ProcessGroup, dtype: torch.dtype, kind: _Kind) -> None:
        self._plan, self._run, self._group, self._dtype, self._kind = plan, run, group, dtype, kind
        self.samples: dict[tuple[str, bool, int], tuple[list[float], list[float]]] = {}  # plain, the other
        free = min(run.tell(torch.cuda.mem_get_info()[0]))
        self.sizes = [size for size in plan.sizes if size * _SPARE <= free]
        run.doing = f"making buffers of {dtype}"
        too_little = f"has {free} bytes free: a buffer of {plan.sizes[0]} bytes wants {_SPARE} times as much"
        run.agree("" if self.sizes else too_little)
        self._aligner = torch.zeros(1, device="cuda")
        dist.all_reduce(self._aligner)
        dist.all_reduce(self._aligner, group=group)
        # The device of no rank goes on before those of all ranks are there.
        self._clock = Clock(run, lambda: dist.all_reduce(self._aligner))
        self._arms: dict[int, Sequence[Arm | RegisteredArm]] = {}

    def make_buffers(self, *, graph: bool, reverse: bool) -> None:
        """Make the buffers of all sizes, elsewhere than before: a kernel's time depends a little on where they lie."""
        self._run.doing, failure = f"making buffers of {self._dtype}", ""
        self._clock.settle()
        self._arms.clear()
        gc.collect()  # all ranks give back the same memory before they ask for more
        try:
            for size in sorted(self.sizes, reverse=reverse):
                self._arms[size] = self._kind.arms(self._group, size, self._dtype, graph)
        except (RuntimeError, torch.OutOfMemoryError) as problem:
            failure = " ".join(str(problem).split())
        self._run.agree(failure)

    def point(self, operation: str, graph: bool, nbytes: int) -> Any:
        """Return what was measured so far, a point of the kind; equal on all ranks."""
        return self._kind.point(nbytes, *_numbers(*self.samples[operation, graph, nbytes]))

    def is_decided(self, graph: bool, operation: str, nbytes: int) -> bool:
        """Whether the samples so far are enough to choose by; equal on all ranks."""
        return is_decided(of_median(_quotients(*self.samples[operation, graph, nbytes])), self._plan.margin)

    def measure(self, operation: str, graph: bool, nbytes: int, times: int) -> None:
        """Add to the samples of one size, `times` as many as in a first pass."""
        arms, calls = self._arms[nbytes], calls_in_a_row(nbytes)
        wrong = [arm.check(operation, self._clock.settle) for arm in arms]
        self._run.agree("; ".join(filter(None, wrong)))
        acts = []
        for arm in arms:
            arm.clear(operation)
            self._clock.settle()  # a capture waits for the device, also where a rank is missing
            acts.append(partial(_act, arm.prepare, repeated(partial(arm.call, operation), calls, graph=graph)))
        taken = take_turns(self._clock, acts, calls, times * -(-self._plan.samples // _FIRST_PASSES))
        all_samples = self.samples.setdefault((operation, graph, nbytes), ([], []))
        for mine, samples in zip(taken, all_samples, strict=True):
            samples += slowest(self._run.tell(mine))


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the largest of all ranks' samples, one after the other."""
    return [max(times) for times in zip(*by_rank, strict=True)]


def _act(prepare: Callable[[], None], act: Callable[[], object]) -> None:
    prepare()
    act()


def _quotients(plain: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return plain / other, turn by turn: what changes with time touches both."""
    return [a / b for a, b in zip(plain, other, strict=True)]


def _numbers(plain: Sequence[float], other: Sequence[float]) -> tuple[float, float, float, float]:
    """Return both times, the gain and its spread."""
    low, gain, high = statistics.quantiles(_quotients(plain, other), n=4)
    middles = round(statistics.median(plain), 3), round(statistics.median(other), 3)
    return *middles, round(gain, 4), round(high - low, 4)
