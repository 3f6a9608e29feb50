"""Policy ``measured`` against the better of plain and symmetric memory, at every size of a tuning table.

    SYMM_REGISTER_HOOK=1 SYMM_REGISTER_POLICY=measured SYMM_REGISTER_TUNED=tuned.json \
        torchrun --nproc-per-node 2 benchmarks/tuned.py [SAMPLES]

Three arms take turns in one run: plain memory, symmetric memory, and what the policy gives. Their buffers are made four
times, in another order each time, because a kernel's time depends a little on where its buffers lie. Times are those of
the slowest rank. A line has the medians, and the quotient better of both / policy, taken turn by turn: its median and
quartiles. 1 is as fast as the better one.
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
from tracehook.tuning.clock import Clock, calls_in_a_row, repeated, take_turns
from tracehook.tuning.crew import Crew
from tracehook.tuning.sweep import slowest
from tracehook.tuning.table import Row, load

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 200
LIMIT = 0.99
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1))  # in which the arms' buffers are made


def arms_of(row: Row, nbytes: int, order: Sequence[int]) -> list[Arm]:
    """Return buffers of one size: plain ones, symmetric ones, and those that a program gets that says what for."""
    hints = {"operation": row.operation, "nbytes": nbytes, "dtype": row.dtype, "graph": row.graph}
    scopes = [tracehook.symmetric(disabled=True), tracehook.symmetric(graph=row.graph), tracehook.symmetric(**hints)]
    made = {which: Arm(dist.group.WORLD, nbytes, getattr(torch, row.dtype), scopes[which]) for which in order}
    return [made[which] for which in range(len(scopes))]


def times_of(clock: Clock, crew: Crew, arms: list[Arm], row: Row, nbytes: int) -> list[list[float]]:
    """Return the samples of each arm: microseconds of the slowest rank."""
    calls, acts = calls_in_a_row(nbytes), []
    for arm in arms:
        crew.agree(arm.check(row.operation, clock.settle))
        arm.clear(row.operation)
        clock.settle()
        acts.append(repeated(partial(arm.call, row.operation), calls, graph=row.graph))
    gc.collect()
    gc.disable()
    samples = take_turns(clock, acts, calls, SAMPLES * (3 if nbytes <= 8 << 20 else 1) // len(ORDERS))
    gc.enable()
    return [slowest(crew.tell(mine)) for mine in samples]


def main() -> None:
    """Print a line for each size, and at the end how many are below the limit."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    crew = Crew(60)
    aligner = torch.zeros(1, device=device)
    clock = Clock(crew, lambda: dist.all_reduce(aligner))
    table = load(Path(os.environ["SYMM_REGISTER_TUNED"]))
    quotients = []
    for row, points in table.rows.items():
        for nbytes in [point.nbytes for point in points if row.ranks == crew.ranks]:
            crew.doing = f"{row} {nbytes}"
            samples: list[list[float]] = [[], [], []]
            for order in ORDERS:
                arms = arms_of(row, nbytes, order)
                for mine, taken in zip(samples, times_of(clock, crew, arms, row, nbytes), strict=True):
                    mine += taken
            plain, symmetric, policy = samples
            best = min(plain, symmetric, key=statistics.median)
            low, middle, high = statistics.quantiles((a / b for a, b in zip(best, policy, strict=True)), n=4)
            quotients.append(middle)
            if crew.rank == 0:
                kind = "symmetric" if tracehook.is_symmetric(arms[2].large) else "plain"
                medians = [f"{statistics.median(each):9.2f}" for each in (plain, symmetric, policy)]
                print(
                    f"{row.operation:15} {'graph' if row.graph else 'eager'} {nbytes:>11} plain, symmetric, policy:",
                    *medians,
                    f"us ({kind}); {middle:.3f} [{low:.3f} .. {high:.3f}]",
                    flush=True,
                )
    if crew.rank == 0:
        below = sum(each < LIMIT for each in quotients)
        print(f"{len(quotients)} sizes: {below} below {LIMIT}; smallest {min(quotients):.3f}", flush=True)
    dist.destroy_process_group()


main()
