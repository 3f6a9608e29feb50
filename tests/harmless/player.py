"""One rank in one seed: its groups, its tensors, and what came out wrong."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import programs
import surroundings
import torch
import torch.distributed as dist
from common import RANK, WORLD, until

import tracehook
from tracehook.agreement import handshake
from tracehook.hook.service import service
from tracehook.ipc import PeerGroup
from tracehook.policies import installed
from tracehook.symmetric_memory import state

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
_now = time.time
installed._offered = functools.cache(installed._offered)  # each seed asks for its policy anew, as if it were a process


def value(step: int, rank: int, part: int = 0) -> float:
    """Return what a rank puts into a part of a tensor at a step: sums are exact."""
    return float((step + 1) * 64 + rank * 8 + part)


def _is_all_given_back() -> bool:
    torch.cuda.empty_cache()
    return not tracehook.status()["pools"]


class Player:
    """The part that all steps share."""

    had_groups = False  # in this process: torch 2.11 crashes in a split_group after an earlier destroy

    def __init__(self, seed: int, control: Any, folder: Path, patience: float) -> None:
        self.seed = seed
        self.control = control
        self.folder = folder
        self.patience = patience  # seconds: the time-out of the groups
        self.around = surroundings.draw(seed, WORLD, is_calm=patience < surroundings.LONG)
        self.program = programs.draw(seed, WORLD, self.around.is_bound)
        self.groups: dict[str, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.works: dict[int, Any] = {}
        self.graphs: dict[int, Any] = {}
        self.peer_groups: dict[str, PeerGroup] = {}  # that stay open
        self.owned: list[Any] = []  # communicators that torch did not make, with a tensor
        self.side = torch.cuda.Stream(device)
        self.captured = torch.cuda.Stream(device)
        self.wrong: list[str] = []
        self.at = 0
        self._rests = threading.Event()
        self.workers = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]

    # --- surroundings ---

    def surround(self) -> None:
        """Make the machine what it is in this seed."""
        around = self.around
        sys.setswitchinterval(around.switch)
        gc.enable()
        gc.set_threshold(*((around.collects, 10, 10) if around.collects else (0,)))
        time.time = lambda: _now() + around.clocks[RANK]  # a clock that is wrong, or was set
        if around.busy == RANK:
            threading.Thread(target=self._compute, daemon=True).start()

    def _compute(self) -> None:
        while not self._rests.wait(0.01):
            end = time.monotonic() + 0.004
            while time.monotonic() < end:
                pass

    def rest(self) -> None:
        """Make the machine what it was."""
        self._rests.set()
        for thread in self.workers:
            thread.shutdown()
        time.time = _now
        sys.setswitchinterval(0.005)

    # --- groups ---

    def begin(self, name: str) -> None:
        """Make a store of that name, and the groups."""
        own = dataclasses.replace(service().settings, guard=self.around.guards[RANK], timeout=self.around.patience)
        memory = state.memory()
        assert memory is not None
        memory._settings = own
        memory._pool_choice = type(memory._pool_choice)([self.around.policy], memory.push)
        handshake.this_host = lambda: f"host {self.around.hosts[RANK]}"  # type: ignore[assignment]  # nothing clears it
        if Player.had_groups and self.around.veteran == RANK:
            self._live_before()
        store = surroundings.make_store(self.around, self.control, name, RANK, self.folder)
        limit = timedelta(seconds=self.patience)
        dist.init_process_group(
            "nccl",
            store=store,
            rank=RANK,
            world_size=WORLD,
            device_id=device if self.around.is_bound else None,
            timeout=limit,
        )
        self.groups = {"world": dist.group.WORLD}
        for name, parts in self.program.groups.items():
            if name == "split" and not Player.had_groups:
                self.groups[name] = dist.split_group(split_ranks=[list(part) for part in parts], timeout=limit)
                continue
            for part in parts if name != "world" else ():
                group = dist.new_group(list(part), timeout=limit)
                if RANK in part:
                    self.groups[name] = group
        Player.had_groups = True

    def _live_before(self) -> None:
        """Have a default group of this process alone, with scopes that the later ones do not have."""
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
        for step in self.program.steps[:3]:
            with tracehook.symmetric():
                made = [torch.empty(3 * size, device=device) for size in step.sizes]
            for tensor in made:
                dist.all_reduce(tensor)
            del made
        dist.destroy_process_group()

    def end(self) -> list[str]:
        """Destroy the groups; return what is left."""
        while self.graphs:  # and no name keeps a tensor of the last one
            self.graphs.popitem()[1][0].reset()
        while self.owned:
            self.owned.pop(0)[0].destroy()
        while self.peer_groups:
            self.peer_groups.popitem()[1].close()
        self.tensors.clear()
        self.works.clear()
        torch.cuda.synchronize()
        dist.destroy_process_group()
        tracehook.release_graphs()
        left = [row["group"] for row in tracehook.status()["windows"] if row["windows"]]
        gc.collect()
        until(_is_all_given_back, 2.0)
        pools = tracehook.status()["pools"]
        return [f"windows are left: {left}"] if left else [f"segments are left: {pools}"] if pools else []

    def play(self) -> None:
        """Take every step in which this rank has a part."""
        for at, step in enumerate(self.program.steps):
            self.at = at
            if step.late:
                time.sleep(step.late[RANK])
            self.take(at, step)

    def take(self, at: int, step: programs.Step) -> None:
        """Take a step, unless this rank has no part in it."""
        if self.is_in(step.group) or (step.second and self.is_in(step.second)):
            getattr(self, step.kind)(at, step, self.groups.get(step.group))

    def is_in(self, group: str) -> bool:
        """Whether this rank is in a group."""
        return bool(self.members(group))

    def members(self, group: str) -> tuple[int, ...]:
        """Return the ranks that meet this rank in a group."""
        return self.program.members(group, RANK)

    # --- values ---

    def fill(self, tensor: torch.Tensor, *what: float) -> torch.Tensor:
        """Put one value into all elements, or one into each part."""
        given = torch.tensor(what, dtype=torch.float32).repeat_interleave(tensor.numel() // len(what))
        return tensor.copy_(given)  # kernels do nothing on emulated devices

    def total(self, at: int, group: str) -> float:
        """Return the sum of what the ranks give."""
        return sum(value(at, rank) for rank in self.members(group))

    def expect(self, at: int, tensor: torch.Tensor, *what: float) -> None:
        """Compare all elements."""
        found = tensor.cpu().view(len(what), -1)
        right = torch.tensor(what, dtype=torch.float32)[:, None]
        if not bool((found == right).all()):
            seen = [float(part[0]) for part in found] + [float(part[-1]) for part in found]
            self.wrong.append(f"step {at} ({self.program.steps[at].kind}): {seen}, not {list(what)}")
