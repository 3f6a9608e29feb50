"""Plays random correct programs in random surroundings: job.py FIRST COUNT FOLDER. One process a rank.

With `planted` one rank does something else at one step of each seed.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from common import RANK, WORLD, tell, until
from diverging import Diverging, Run
from player import device

from tracehook import _core
from tracehook.hook import registration
from tracehook.symmetric_memory import pool_users

FIRST, COUNT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
HARD = 100.0  # seconds after which a seed that stands still shows where
PATIENCE = 60.0
SHORT = 3.0  # seconds that ranks wait for one that does something else
PLANTED = "planted" in sys.argv

faulthandler.enable()
pool_users.LOOK = 0.02
torch.cuda.set_device(device)
if os.environ.get("SYMM_REGISTER_MEMORY") == "vmm":
    torch.cuda.init()
    registration.all_calls(_core, registered=True)  # those of few bytes, too
control = dist.FileStore(os.environ["TEST_STORE"], WORLD)
failures: dict[int, list[str]] = {}
announced: dict[int, str] = {}
gc.collect()
gc.freeze()  # or looking at everything that torch made costs more than a seed
for seed in range(FIRST, FIRST + COUNT):
    faulthandler.dump_traceback_later(HARD / 4 if PLANTED else HARD, exit=True)
    run = Diverging(seed, control, FOLDER, SHORT) if PLANTED else Run(seed, control, FOLDER, PATIENCE)
    found: list[str] = []
    try:
        run.surround()
        run.begin(f"seed {seed}")
        run.play()
        found = run.wrong + run.end()
    except Exception as problem:
        announced[seed] = f"{type(problem).__name__}: {problem}"
        where = [line.strip() for line in traceback.format_exc().splitlines() if "tests/harmless" in line]
        found = [*run.wrong, f"step {run.at}: {announced[seed]} at {where[-1] if where else '?'}"]
    run.rest()
    if found:
        failures[seed] = found
        if "verbose" in sys.argv:
            print(f"seed {seed}, rank {RANK}: {found}\n{run.around}\n{run.program}", file=sys.stderr, flush=True)
        if announced.get(seed):  # the group cannot go on
            if "verbose" in sys.argv:
                traceback.print_exc()
            tell(failures=failures, announced=announced)
            sys.stdout.flush()
            time.sleep(2.0)  # the other ranks still hear why at the store of rank 0
            control.set(f"done {seed} {RANK}", "")
            os._exit(1)
    if PLANTED:
        control.set(f"done {seed} {RANK}", "")
        if RANK == 0:  # this rank has the store
            until(functools.partial(control.check, [f"done {seed} {rank}" for rank in range(WORLD)]), SHORT)
        break
    control.set(f"done {seed} {RANK}", "")
    control.wait([f"done {seed} {rank}" for rank in range(WORLD)])
faulthandler.cancel_dump_traceback_later()
tell(failures=failures, announced=announced)
