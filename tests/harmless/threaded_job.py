"""Plays random correct programs of ranks that are threads of one process: threaded_job.py FIRST COUNT RANKS.

torch has one default group in a process, so the ranks use communicators that they make by hand. They compare in a
HashStore.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

import programs
import surroundings
import torch
import torch.distributed as dist
from common import UniqueId, must, tell

import tracehook
from tracehook.hook.service import service
from tracehook.symmetric_memory import state

if TYPE_CHECKING:
    from programs import Step

FIRST, COUNT, RANKS = (int(text) for text in sys.argv[1:4])
HARD = 20.0
FLOAT, SUM = 7, 0

nccl = ctypes.CDLL("libnccl.so.2")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
nccl.ncclCommInitRank.argtypes = [pointer, ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclAllReduce.argtypes = [pointer, pointer, size, ctypes.c_int, ctypes.c_int, pointer, pointer]
nccl.ncclAllGather.argtypes = [pointer, pointer, size, ctypes.c_int, pointer, pointer]


class ThreadRank:
    """One rank in one seed: its communicators, its tensors, and what came out wrong."""

    def __init__(self, seed: int, rank: int, program: programs.Program, names: dict[str, UniqueId]) -> None:
        self.seed = seed
        self.rank = rank
        self.program = program
        self.names = names
        self.device = torch.device("cuda", rank)
        self.communicators: dict[str, ctypes.c_void_p] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            torch.cuda.set_device(self.device)
            for name, unique in self.names.items():
                made = self.communicators[name] = ctypes.c_void_p()
                must(nccl.ncclCommInitRank(ctypes.byref(made), RANKS, unique, self.rank))
            for at, step in enumerate(self.program.steps):
                time.sleep(step.late[self.rank] if step.late else 0.0)
                act = getattr(self, step.kind, None)
                if step.group in self.communicators and act is not None:
                    act(at, step, self.communicators[step.group])
            self.tensors.clear()
            torch.cuda.synchronize(self.device)
            for made in self.communicators.values():
                must(nccl.ncclCommDestroy(made))
        except (Exception, SystemExit) as problem:
            where = traceback.format_exc().splitlines()[-3].strip()
            tell(
                failures={self.seed: [*self.wrong, f"rank {self.rank}: {type(problem).__name__}: {problem} at {where}"]}
            )
            os._exit(1)  # the other ranks wait for this one

    def _value(self, at: int, rank: int) -> float:
        return float((at + 1) * 16 + rank)

    def _expect(self, at: int, tensor: torch.Tensor, what: list[float]) -> None:
        torch.cuda.synchronize(self.device)
        found = tensor.cpu().view(len(what), -1)
        if not bool((found == torch.tensor(what)[:, None]).all()):
            self.wrong.append(f"rank {self.rank}, step {at}: {found[:, 0].tolist()}, not {what}")

    def scope(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Make tensors inside of a scope."""
        with tracehook.symmetric(communicator=communicator):
            made = [torch.empty(each, device=self.device) for each in step.sizes]
        self.tensors |= dict(zip(step.tensors, made, strict=True))

    def all_reduce(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:
        """Sum a tensor of a scope."""
        tensor = self.tensors[step.tensors[0]]
        tensor.copy_(torch.full((tensor.numel(),), self._value(at, self.rank)))
        place, stream = tensor.data_ptr(), torch.cuda.current_stream().cuda_stream
        must(nccl.ncclAllReduce(place, place, tensor.numel(), FLOAT, SUM, communicator, stream))
        self._expect(at, tensor, [sum(self._value(at, rank) for rank in range(RANKS))])

    def all_gather(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:
        """Gather into a tensor of a scope."""
        whole = self.tensors[step.tensors[0]]
        count = whole.numel() // RANKS
        part = whole[self.rank * count : (self.rank + 1) * count]
        part.copy_(torch.full((count,), self._value(at, self.rank)))
        stream = torch.cuda.current_stream().cuda_stream
        must(nccl.ncclAllGather(part.data_ptr(), whole.data_ptr(), count, FLOAT, communicator, stream))
        self._expect(at, whole[: count * RANKS], [self._value(at, rank) for rank in range(RANKS)])

    def free(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Drop a tensor."""
        self.tensors.pop(step.tensors[0])

    flight = free
    start = reduce = finish = all_reduce

    def send(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Drop a tensor that a program with processes would have sent."""
        if "drop" in step.how:
            self.tensors.pop(step.tensors[0])

    def sync(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Compare what was used so far."""
        tracehook.sync(communicator=communicator)

    def reserve(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Grow the pool."""
        tracehook.reserve(step.sizes[0] * 8, communicator=communicator, small_nbytes=0)

    def restart(self, at: int, step: Step, communicator: ctypes.c_void_p) -> None:  # noqa: ARG002
        """Drop all tensors, as a program that makes its groups anew."""
        self.tensors.clear()


def play(seed: int) -> list[str]:
    """Play one seed; return what went wrong."""
    around = surroundings.draw(seed, RANKS)
    store: dist.Store = dist.HashStore()
    for number in range(around.prefixes):
        store = dist.PrefixStore(f"prefix {number}", store)
    tracehook.use_store(store)
    memory = state.memory()
    assert memory is not None
    memory._settings = dataclasses.replace(service().settings, timeout=around.patience)
    sys.setswitchinterval(around.switch)
    program = programs.draw(seed, RANKS)
    # A rank has one thread here: the lanes of a `crowd` come one after the other.
    steps = [each for step in program.steps for each in (itertools.chain(*step.lanes) if step.lanes else (step,))]
    # The tensor that a `beside` makes is made in a plain scope.
    program.steps = [
        dataclasses.replace(step, kind="scope", tensors=step.tensors[:1], sizes=step.sizes[:1])
        if step.kind == "beside"
        else step
        for step in steps
    ]
    names = {name: UniqueId() for name in ("world", "twin")}
    for unique in names.values():
        must(nccl.ncclGetUniqueId(ctypes.byref(unique)))
    ranks = [ThreadRank(seed, rank, program, names) for rank in range(RANKS)]
    for rank in ranks:
        rank.thread.start()
    for rank in ranks:
        rank.thread.join()
    wrong = [text for rank in ranks for text in rank.wrong]
    left = [row["group"] for row in tracehook.status()["windows"] if row["windows"]]
    return [*wrong, f"windows are left: {left}"] if left else wrong


for index in range(RANKS):
    torch.empty(1, device=f"cuda:{index}")
failures: dict[int, list[str]] = {}
for seed in range(FIRST, FIRST + COUNT):
    faulthandler.dump_traceback_later(HARD, exit=True)
    found = play(seed)
    if found:
        failures[seed] = found
faulthandler.cancel_dump_traceback_later()
tell(failures=failures)
