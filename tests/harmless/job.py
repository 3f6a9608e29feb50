"""Plays random correct programs in random surroundings: job.py FIRST COUNT FOLDER [planted]. One process a rank."""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import programs
import surroundings
import torch
import torch.distributed as dist
from common import RANK, WORLD, tell

import tracehook
from tracehook.hook.service import service
from tracehook.symmetric_memory import ranks as ranks_module
from tracehook.symmetric_memory import state

FIRST, COUNT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
PLANTED = "planted" in sys.argv
HARD = 100.0  # seconds after which a seed that stands still shows where
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
torch.cuda.set_device(device)
control = dist.FileStore(os.environ["TEST_STORE"], WORLD)


def value(step: int, rank: int) -> float:
    """Return what a rank puts into a tensor at a step: sums are exact."""
    return float((step + 1) * 16 + rank)


class Run:
    """One seed on this rank."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.program = programs.draw(seed, WORLD)
        self.around = surroundings.draw(seed, WORLD)
        self.tensors: dict[int, torch.Tensor] = {}
        self.side = torch.cuda.Stream(device)
        self.wrong: list[str] = []
        self.fault = programs.planted(self.program, seed) if PLANTED else (-1, -1)

    def begin(self, name: str) -> None:
        """Make a store of that name, and the groups."""
        own = dataclasses.replace(service().settings, guard=self.around.guards[RANK], timeout=self.around.patience)
        memory = state.memory()
        assert memory is not None
        memory._settings = own
        memory._pool_choice = type(memory._pool_choice)([self.around.policy], memory.push)
        ranks_module.shared_memory_domain = lambda: f"host {self.around.hosts[RANK]}"
        store = surroundings.make_store(self.around, control, name, RANK, FOLDER)
        dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, device_id=device)
        self.groups = {"world": dist.group.WORLD}
        for name, members in self.program.groups.items():
            if name != "world":
                self.groups[name] = dist.new_group(list(members))

    def play(self) -> None:
        """Take every step in which this rank has a part."""
        for at, step in enumerate(self.program.steps):
            if step.late:
                time.sleep(step.late[RANK])
            if RANK in self.program.groups[step.group]:
                getattr(self, step.kind)(at, step, self.groups[step.group])

    def fill(self, tensor: torch.Tensor, what: float) -> torch.Tensor:
        """Put one value into all elements."""
        return tensor.copy_(torch.full((tensor.numel(),), what))  # kernels do nothing on emulated devices

    def expect(self, at: int, tensor: torch.Tensor, what: float) -> None:
        """Compare the first and the last element."""
        found = [float(tensor[0].cpu()), float(tensor[-1].cpu())]
        if found != [what, what]:
            self.wrong.append(f"step {at} ({self.program.steps[at].kind}): {found}, not {what}")

    # --- steps ---

    def scope(self, at: int, step: programs.Step, group: Any) -> None:
        """Make tensors inside of a scope."""
        sizes = [size * 3 if self.fault == (at, RANK) else size for size in step.sizes]

        def make() -> list[torch.Tensor]:
            if "nested" in step.how:
                with tracehook.symmetric(group):
                    return [torch.empty(size, device=device) for size in sizes]
            return [torch.empty(size, device=device) for size in sizes]

        async def task() -> list[torch.Tensor]:
            with tracehook.symmetric(group):
                await asyncio.sleep(0)
                return make()

        if "ordinary first" in step.how:
            torch.empty(7777, device=device)
        if "task" in step.how:
            made = asyncio.run(task())
        else:
            with tracehook.symmetric(group):
                made = make()
        for number, tensor, size in zip(step.tensors, made, step.sizes, strict=True):
            self.tensors[number] = tensor[:size]

    def all_reduce(self, at: int, step: programs.Step, group: Any) -> None:
        """Sum a tensor of a scope."""
        members = self.program.groups[step.group]
        tensor = self.fill(self.tensors[step.tensors[0]], value(at, RANK))
        torch.cuda.synchronize()
        if "out of place" in step.how:
            tensor = tensor.clone()

        def reduce() -> None:
            torch.cuda.set_device(device)
            stream = self.side if "side stream" in step.how else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                work = dist.all_reduce(tensor, group=group, async_op="async" in step.how)
                if work is not None:
                    work.wait()
            stream.synchronize()

        if "thread" in step.how:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(reduce).result()
        else:
            reduce()
        self.expect(at, tensor, sum(value(at, rank) for rank in members))

    def send(self, at: int, step: programs.Step, group: Any) -> None:
        """Send a tensor of a scope to one rank."""
        source, target = step.ranks
        number, size = step.tensors[0], step.sizes[0]
        if source == RANK:
            tensor = self.fill(self.tensors[number], value(at, RANK))
            if "async" in step.how:
                dist.isend(tensor, target, group=group).wait()  # else it holds the tensor, on this rank alone
            else:
                dist.send(tensor, target, group=group)
        elif target == RANK:
            received = torch.empty(size, device=device)
            dist.recv(received, source, group=group)
            self.expect(at, received, value(at, source))
        if "drop" in step.how:
            self.tensors.pop(number, None)

    def free(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Drop a tensor."""
        self.tensors.pop(step.tensors[0], None)

    def flight(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Drop a tensor while another stream writes into it, for as long as each rank's device takes."""
        tensor = self.tensors.pop(step.tensors[0])
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            tensor.copy_(torch.full((tensor.numel(),), 7.0).pin_memory(), non_blocking=True)
        tensor.record_stream(self.side)

    def reserve(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Grow the pool of a group."""
        tracehook.reserve(step.sizes[0] * 8, group, small_nbytes=0)

    def restart(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """End all groups, and make them anew over another store."""
        self.wrong += self.end()
        self.begin(f"seed {self.seed} from step {at}")

    def plain(self, at: int, step: programs.Step, group: Any) -> None:
        """Sum ordinary memory."""
        tensor = self.fill(torch.empty(step.sizes[0], device=device), value(at, RANK))
        dist.all_reduce(tensor, group=group)
        self.expect(at, tensor, sum(value(at, rank) for rank in self.program.groups[step.group]))

    def barrier(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Wait for all ranks."""
        dist.barrier(group)

    def trim(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Give back what no rank uses."""
        tracehook.trim(group)

    def sync(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Compare what was used so far."""
        tracehook.sync(group)

    def empty_cache(self, at: int, step: programs.Step, group: Any) -> None:  # noqa: ARG002
        """Have torch give back its own cache."""
        torch.cuda.empty_cache()

    def end(self) -> list[str]:
        """Destroy the groups; return what is left."""
        self.tensors.clear()
        torch.cuda.synchronize()
        dist.destroy_process_group()
        left = [row["group"] for row in tracehook.status()["windows"] if row["windows"]]
        return [f"windows are left: {left}"] if left else []


failures: dict[int, list[str]] = {}
announced: dict[int, str] = {}
for seed in range(FIRST, FIRST + COUNT):
    faulthandler.dump_traceback_later(HARD, exit=True)
    run = Run(seed)
    found: list[str] = []
    try:
        run.begin(f"seed {seed}")
        run.play()
        found = run.wrong + run.end()
    except Exception as problem:
        announced[seed] = f"{type(problem).__name__}: {problem}"
        found = [*run.wrong, f"{announced[seed]} at {traceback.format_exc().splitlines()[-3].strip()}"]
    if found:
        failures[seed] = found
        if "verbose" in sys.argv:
            print(f"seed {seed}, rank {RANK}: {found}\n{run.around}\n{run.program}", file=sys.stderr, flush=True)
        if announced.get(seed):  # the group cannot go on
            tell(failures=failures, announced=announced)
            sys.stdout.flush()
            time.sleep(2.0)  # the other ranks still hear why at the store of rank 0
            os._exit(1)
    control.set(f"done {seed} {RANK}", "")
    control.wait([f"done {seed} {rank}" for rank in range(WORLD)])
faulthandler.cancel_dump_traceback_later()
tell(failures=failures, announced=announced, json=json.dumps(sorted(failures)))
