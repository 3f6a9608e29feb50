"""Plays one program again and again, and lets one call fail each time: job.py FOLDER [FIRST].

Without FIRST: tells the calls that tracehook makes in a turn, of the first turn in a process and of a later one. With
FIRST: plays the variants in FOLDER/variants from there.
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import failing_store
import torch
import torch.distributed as dist
from common import RANK, WORLD, tell
from interrupts import Interrupted, Lines
from program import Program
from surroundings import tcp_store
from variants import BEYOND, LINE, LONG, Variant, ends_in_nccl, patience_of

import tracehook
from tracehook import _core
from tracehook.hook import groups
from tracehook.ipc.tables import EXPORTS, IMPORTS
from tracehook.rehearsal.faults import calls

FOLDER = Path(sys.argv[1])
STEPS = os.environ["TEST_STEPS"].split()
HARD = 150.0
patience: float = LONG
LITTLE = 40.0  # seconds for a turn in which nothing fails
groups.timeout = lambda _: patience

emulated = ctypes.CDLL(None)
emulated.emu_fault_calls.restype = ctypes.c_uint64
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
control = dist.FileStore(os.environ["TEST_STORE"], WORLD)


def play_fault(faults: str) -> None:
    """Let these calls of NCCL and CUDA fail, counted from now on."""
    emulated.emu_play_faults(faults.encode())


def said(problem: Exception) -> str:
    """Return what a program learns of an exception."""
    return f"{type(problem).__name__}: {problem}".split("\nException raised from")[0]


def meet(name: str) -> None:
    """Wait for all ranks."""
    control.set(f"{name} {RANK}", "")
    control.wait([f"{name} {rank}" for rank in range(WORLD)])


class Turn:
    """One turn of the program, with what a launcher does beside: it ends ranks that wait for one that raised."""

    def __init__(self, name: str, aborts: bool = False, lines: Lines | None = None) -> None:
        self.name = name
        self._aborts = aborts  # the groups at the end, if a rank raised: NCCL has failed
        self._lines = lines
        self.is_released = False
        self._over = threading.Event()

    def play(self) -> dict[str, Any]:
        """Take all steps; return what became of them."""
        program = Program(tcp_store(control, self.name, RANK, wakes=True), device, 2 * (patience + BEYOND))
        begin = time.monotonic()
        told: dict[str, Any] = {}
        with self._released():
            try:
                program.run("begin")
                with self._lines if self._lines is not None else contextlib.nullcontext():
                    program.run(*STEPS)
            except (Exception, Interrupted) as problem:
                told["raised"] = said(problem)
                told["at"] = program.at
        if self._lines is not None:  # what this looks at allocates, which would count as a call
            told |= {"interrupted": self._lines.interrupted, "stays": what_stays()}
        told["seconds"] = round(time.monotonic() - begin, 1)
        control.set(f"{self.name} ended {RANK}", "raised" if "raised" in told else "")
        self._end(program, told)
        return told | {"wrong": program.wrong, "released": self.is_released}

    def _end(self, program: Program, told: dict[str, Any]) -> None:
        ended = [f"{self.name} ended {rank}" for rank in range(WORLD)]
        control.wait(ended)
        told["raisers"] = [rank for rank in range(WORLD) if control.get(ended[rank])]
        if not told["raisers"]:
            self._close(program, told)
            return
        gc.collect()
        if not self._aborts and not self._any_released() and program.other is not None:
            try:
                program.sum_in(program.other)
            except Exception as problem:
                told["other group"] = said(problem)
        self._close(program, told)

    def _any_released(self) -> bool:
        control.set(f"{self.name} released {RANK}", str(int(self.is_released)))
        return any(int(control.get(f"{self.name} released {rank}")) for rank in range(WORLD))

    def _close(self, program: Program, told: dict[str, Any]) -> None:
        if not dist.is_initialized():
            return
        with self._released():
            try:
                if told["raisers"] and (self._aborts or self._any_released()):
                    dist.distributed_c10d._abort_process_group()
                    return
                program.run("free")
            except Exception as problem:
                told["free"] = said(problem)
            meet(f"{self.name} ends")  # rank 0 has the store
            try:
                program.run("end")
            except Exception as problem:
                told["end"] = said(problem)

    @contextlib.contextmanager
    def _released(self) -> Iterator[None]:
        self._over.clear()
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()

    def _watch(self) -> None:
        raised = [f"{self.name} ended {rank}" for rank in range(WORLD) if rank != RANK]
        while not self._over.wait(0.05):
            if any(control.check([key]) and control.get(key) for key in raised):
                if not self._over.wait(patience + BEYOND) and dist.is_initialized():
                    self.is_released = True
                    dist.distributed_c10d._abort_process_group()
                return


def what_stays() -> list[str]:
    """Return in what state the thread is that it was not in before the turn."""
    found = ["blocked signals"] if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else []
    mine = torch.empty(1 << 18, device=device)
    return [*found, "a scope"] if _core.pool_segment_at(mine.data_ptr()) else found


def used() -> int:
    """Return the bytes of the device that are in use."""
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def clean(name: str) -> dict[str, Any]:
    """Use a fresh group; return what is left of the turn before."""
    program = Program(tcp_store(control, name, RANK, wakes=True), device, LONG)
    program.run("begin", "free")
    status = tracehook.status()
    left: dict[str, Any] = {
        "windows": [row["group"] for row in status["windows"] if row["windows"]],
        "held": sum(row["held"] for row in status["communicators"]),
        "state": status["state"],
        "wrong": program.wrong,
    }
    meet(f"{name} ends")  # rank 0 has the store
    program.run("end")
    gc.collect()
    torch.cuda.empty_cache()
    begin = time.monotonic()
    while (held := [*EXPORTS.held(), IMPORTS.mapped()]) != [0, 0, 0] and time.monotonic() < begin + BEYOND:
        time.sleep(0.01)  # peers unmap on a thread
    left["of peers"] = held
    left["communicators"] = len(tracehook.status()["communicators"])
    left["pools"] = sum(row["bytes"] for row in tracehook.status()["pools"])
    left["bytes"] = used()
    return left


def is_less(value: Any, before: Any) -> bool:
    """Whether memory that an earlier turn left has come back."""
    return isinstance(value, int) and value < before


def count(name: str) -> dict[str, int]:
    """Play a turn in which nothing fails; return the calls that tracehook made."""
    play_fault(",".join(f"{call}:slow@*=0us" for call in calls()))
    failing_store.plan(None)
    told = Turn(name).play()
    assert "raised" not in told, told
    assert not told["wrong"], told
    found = {call: int(emulated.emu_fault_calls(call.encode())) for call in calls()} | failing_store.counts
    play_fault("")
    return {call: number for call, number in found.items() if number}


def count_lines(name: str) -> int:
    """Play such a turn; return how many lines and functions of tracehook the main thread reached."""
    lines = Lines()
    Turn(name, lines=lines).play()
    number: int = lines.count
    return number


def play(number: int, variant: Variant, usual: dict[str, Any]) -> None:
    """Play a turn in which a call fails."""
    global patience
    patience = patience_of(variant)
    faulthandler.dump_traceback_later(HARD, exit=True)
    meet(f"before {number}")
    lines: Lines | None = None
    if variant["rank"] == RANK:
        if variant["call"] == LINE:
            lines = Lines(variant["ordinal"])
        elif variant["call"].startswith(("rounds.", "watch.")):
            failing_store.plan(variant["call"], variant["ordinal"])
        else:
            play_fault(f"{variant['call']}:fail@{variant['ordinal']}={variant['result']}")
    print(f"variant {number}: {variant}", file=sys.stderr, flush=True)
    told = Turn(f"turn {number}", aborts=ends_in_nccl(variant), lines=lines).play()
    failing_store.plan(None)
    play_fault("")
    meet(f"after {number}")
    patience = LONG
    faulthandler.dump_traceback_later(LITTLE, exit=True)
    try:
        left = clean(f"clean {number}")
    except Exception as problem:
        tell(**{f"variant {number}": told | {"left": {"usable": said(problem)}}})
        os._exit(1)
    told["left"] = {name: new for name, new in left.items() if new != usual[name] and not is_less(new, usual[name])}
    usual.update(left)
    tell(**{f"variant {number}": told})


failing_store.install()
faulthandler.enable()
faulthandler.dump_traceback_later(HARD, exit=True)
torch.cuda.set_device(device)
if len(sys.argv) == 2:
    first = count("first")
    tell(first=first, later=count("later") | {LINE: count_lines("lines")})
else:
    planned = json.loads((FOLDER / "variants").read_text())
    count("first")
    clean("clean")
    usual = clean("usual")
    for number in range(int(sys.argv[2]), len(planned)):
        play(number, planned[number], usual)
faulthandler.cancel_dump_traceback_later()
