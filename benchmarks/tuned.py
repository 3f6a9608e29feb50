"""Policy ``measured`` against the better of plain and symmetric memory, at every size of a tuning table.

    SYMM_REGISTER_HOOK=1 SYMM_REGISTER_POLICY=measured SYMM_REGISTER_TUNED=tuned.json \
        torchrun --nproc-per-node 2 benchmarks/tuned.py [graph|eager]

Three arms take turns in one run: plain memory, symmetric memory, and what the policy gives. Times are those of the
slowest rank. A line has the medians, and the quotient better of both / policy, taken turn by turn: its median, and an
interval that has the true median in 99 of 100 cases. 1 is as fast as the better one. The turns of one size differ by
some percent, so a size takes turns until that interval lies on one side of the limit, in at most eight rounds.

A kernel's time depends on where its buffers lie, by up to some percent. So the arms' buffers are made six times in a
round, each time in another order. The policy's buffers are of the same kind as those of one other arm. In every second
set these two arms exchange their buffers, so that the arms differ by nothing but what the policy decides.
"""

import gc
import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import tracehook
from tracehook.tuning.arms import Arm
from tracehook.tuning.clock import Clock, Interval, calls_in_a_row, of_median, repeated, take_turns
from tracehook.tuning.sweep import slowest
from tracehook.tuning.table import Row, load
from tracehook.tuning.tuner_run import TunerRun

SAMPLES = 100  # of each arm with one set of buffers
MOST_ROUNDS = 8
LIMIT = 0.99
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1))  # in which the arms' buffers are made
POLICY = 2  # the arm


def arms_of(row: Row, nbytes: int, order: Sequence[int]) -> list[Arm]:
    """Return buffers of one size: plain ones, symmetric ones, and those that a program gets that says what for."""
    hints = {"operation": row.operation, "nbytes": nbytes, "dtype": row.dtype, "graph": row.graph}
    scopes = [tracehook.symmetric(disabled=True), tracehook.symmetric(graph=row.graph), tracehook.symmetric(**hints)]
    made = {which: Arm(dist.group.WORLD, nbytes, getattr(torch, row.dtype), scopes[which]) for which in order}
    return [made[which] for which in range(len(scopes))]


def times_of(clock: Clock, run: TunerRun, arms: list[Arm], row: Row, nbytes: int) -> list[list[float]]:
    """Return the samples of each arm: microseconds of the slowest rank."""
    calls, acts = calls_in_a_row(nbytes), []
    for arm in arms:
        run.agree(arm.check(row.operation, clock.settle))
        arm.clear(row.operation)
        clock.settle()
        acts.append(repeated(partial(arm.call, row.operation), calls, graph=row.graph))
    gc.collect()
    gc.disable()
    samples = take_turns(clock, acts, calls, SAMPLES if nbytes <= 8 << 20 else SAMPLES // 4)
    gc.enable()
    return [slowest(run.tell(mine)) for mine in samples]


def quotient(samples: list[list[float]]) -> Interval:
    """Return the median of better of both / policy, turn by turn, between the ends of its interval."""
    best = min(samples[:POLICY], key=statistics.median)
    return of_median([a / b for a, b in zip(best, samples[POLICY], strict=True)])


def compare(clock: Clock, run: TunerRun, row: Row, nbytes: int) -> tuple[list[list[float]], str]:
    """Return the samples of each arm at one size, and the kind of memory that the policy gave. Alike on all ranks."""
    samples: list[list[float]] = [[], [], []]
    for _ in range(MOST_ROUNDS):
        for number, order in enumerate(ORDERS):
            arms = arms_of(row, nbytes, order)
            alike = int(tracehook.is_symmetric(arms[POLICY].large))
            taken = times_of(clock, run, arms, row, nbytes)
            if number % 2:
                taken[alike], taken[POLICY] = taken[POLICY], taken[alike]
            for mine, more in zip(samples, taken, strict=True):
                mine += more
        low, _, high = quotient(samples)
        if low >= LIMIT or high < LIMIT:
            break
    return samples, "symmetric" if alike else "plain"


def main() -> None:
    """Print a line for each size, and at the end how many are below the limit."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    run = TunerRun(60)
    aligner = torch.zeros(1, device=device)
    clock = Clock(run, lambda: dist.all_reduce(aligner))
    table = load(Path(os.environ["SYMM_REGISTER_TUNED"]))
    modes = sys.argv[1:] or ["graph", "eager"]
    found = []
    for row, points in table.rows.items():
        if row.ranks != run.ranks or ("graph" if row.graph else "eager") not in modes:
            continue
        for nbytes in [point.nbytes for point in points]:
            run.doing = f"{row} {nbytes}"
            samples, kind = compare(clock, run, row, nbytes)
            low, middle, high = quotient(samples)
            found.append((low, middle, high))
            if run.rank == 0:
                medians = [f"{statistics.median(each):9.2f}" for each in samples]
                print(
                    f"{row.operation:15} {'graph' if row.graph else 'eager'} {nbytes:>11} plain, symmetric, policy:",
                    *medians,
                    f"us ({kind}); {middle:.4f} [{low:.4f} .. {high:.4f}], n={len(samples[0])}",
                    flush=True,
                )
    if run.rank == 0:
        below, unsure = sum(high < LIMIT for _, _, high in found), sum(low < LIMIT <= high for low, _, high in found)
        print(
            f"{len(found)} sizes: {below} below {LIMIT}, {unsure} undecided; smallest median "
            f"{min(middle for _, middle, _ in found):.4f}",
            flush=True,
        )
    dist.destroy_process_group()


main()
