"""What registrations of buffers do to NCCL's calls: with and without them in turn, in one run.

    export SYMM_REGISTER_MEMORY=vmm NCCL_GRAPH_REGISTER=0
    torchrun --standalone --nproc-per-node 2 benchmarks/registration.py eager --memory vmm
    torchrun --standalone --nproc-per-node 2 benchmarks/registration.py graph --memory vmm

`--memory` says where the buffers come from. torch: the allocator's ordinary segments. vmm: the same calls, but the
environment has SYMM_REGISTER_MEMORY=vmm. pool: a MemPool over NCCL's own allocator (ncclMemAlloc). With torch and pool
tracehook registers what SYMM_REGISTER_LOCAL says: `all` registers every segment; without it the arms may be equal, and
show the noise.

Bytes are those of a call's larger buffer. A sample is the mean of some calls in a row, on the slowest rank. The
arms take turns (without, with, with, without, ...), and the samples of one turn are a pair. A line has the median of
each arm, and the quotient without / with of the pairs: its median, and its quartiles. Above 1 the registration gains.

eager: tracehook.enable() and disable() come before each turn. ahead: as eager, but the device is busy until the host
has issued all calls of a sample; so a sample is the device's time, also where the host needs longer for a call. graph:
each arm captures its calls once, into a graph of its own, and the graphs take turns. NCCL_GRAPH_REGISTER=0 keeps NCCL
from registering the buffers of both.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tracehook

SIZES = "0.25,1,4,16,32,256"  # MiB
MIB = 1 << 20
SMALL = 4 * MIB
CALLS = {"eager": (50, 10), "ahead": (50, 10), "graph": (20, 5)}  # of a sample: small, large
BUSY = 40_000_000  # cycles, some 20 ms: more than the host needs for the calls of a sample
LIMIT = 0.98
WARM = 2  # calls after each switch: the first ones register

Call = Callable[[], object]
New = Callable[[int], torch.Tensor]


def allocator(memory: str, device: torch.device) -> New:
    """Return what makes a buffer of so many bytes."""
    pool = None
    if memory == "pool":
        pool = torch.cuda.MemPool(dist.group.WORLD._get_backend(device).mem_allocator)

    def new(nbytes: int) -> torch.Tensor:
        with torch.cuda.use_mem_pool(pool) if pool else contextlib.nullcontext():
            return torch.zeros(nbytes // 2, dtype=torch.bfloat16, device=device)

    return new


def calls_of(nbytes: int, new: New) -> dict[str, Call]:
    """Return the calls that are timed, by name, on buffers of their own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one, other, part = new(nbytes), new(nbytes), new(nbytes // ranks)

    def send_receive() -> None:
        send = dist.P2POp(dist.isend, one, (rank + 1) % ranks)
        receive = dist.P2POp(dist.irecv, other, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(one),
        "all_gather": lambda: dist.all_gather_into_tensor(one, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, one),
        "all_to_all": lambda: dist.all_to_all_single(other, one),
        "send_receive": send_receive,
        "broadcast": lambda: dist.broadcast(one, 0),
    }


def repeat(call: Call, calls: int) -> None:
    for _ in range(calls):
        call()


class Arms:
    """The two arms of one call: switched between samples, or captured before."""

    registering = True  # of all cases: tracehook is on at the beginning

    def __init__(self, call: Call, calls: int, mode: str) -> None:
        """Capture both arms, if the mode is graph; `calls` of a sample."""
        self._call, self._calls, self._mode = call, calls, mode
        self._acts: dict[bool, Call] = dict.fromkeys((False, True), lambda: repeat(call, calls))
        self._aligner = torch.zeros(1, device="cuda")
        repeat(call, WARM)
        if mode == "graph":
            self._acts = {on: self._captured(on) for on in (False, True)}

    def sample(self, on: bool) -> float:
        """Return the microseconds of a call on this rank, with or without registrations."""
        if self._mode != "graph":
            self._switch(on)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if self._mode == "ahead":
            torch.cuda._sleep(BUSY)
        dist.all_reduce(self._aligner)  # no rank's device comes past it before all have come to it
        begin.record()
        self._acts[on]()
        if self._mode == "ahead" and begin.query():
            sys.exit(f"The host needs more than {BUSY} cycles for the calls of a sample: raise BUSY.")
        end.record()
        torch.cuda.synchronize()
        return 1e3 * begin.elapsed_time(end) / self._calls

    def _switch(self, on: bool) -> None:
        """Switch registrations on or off: all ranks at the same place, and no call is under way."""
        if Arms.registering == on:
            return
        for act in (tracehook.enable if on else tracehook.disable, lambda: repeat(self._call, WARM)):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            act()
        Arms.registering = on

    def _captured(self, on: bool) -> Call:
        self._switch(on)
        repeat(self._call, WARM)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeat(self._call, self._calls)
        return graph.replay


def pairs_of(arms: Arms, repetitions: int) -> list[list[float]]:
    """Return the samples of both arms (without, with), of the slowest rank."""
    mine: list[list[float]] = [[], []]
    for turn in range(repetitions):
        for on in (False, True) if turn % 2 == 0 else (True, False):
            mine[on].append(arms.sample(on))
    slowest = torch.tensor(mine, dtype=torch.float64, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [list(each) for each in slowest.tolist()]


def row_of(name: str, nbytes: int, samples: list[list[float]]) -> dict[str, Any]:
    """Return what is known of one case."""
    quotients = [without / with_ for without, with_ in zip(*samples, strict=True)]
    low, middle, high = statistics.quantiles(quotients, n=4, method="inclusive")
    row: dict[str, Any] = {"call": name, "bytes": nbytes, "quotient": middle, "quartiles": [low, high]}
    return row | dict(zip(("without_us", "with_us"), map(statistics.median, samples), strict=True), samples_us=samples)


def line(row: dict[str, Any]) -> str:
    """Return the line of one case."""
    without, with_, (low, high) = row["without_us"], row["with_us"], row["quartiles"]
    text = f"{row['call']:15}{row['bytes'] / MIB:6g} MiB without {without:9.1f} us, with {with_:9.1f} us; without / "
    return f"{text}with {row['quotient']:.3f} [{low:.3f} .. {high:.3f}]" + "  below" * (row["quotient"] < LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description="time NCCL's calls with and without registrations")
    parser.add_argument("mode", choices=["eager", "ahead", "graph"])
    parser.add_argument("--memory", choices=["torch", "vmm", "pool"], default="vmm")
    parser.add_argument("--repetitions", type=int, default=21, help="pairs of a case, at least 9")
    parser.add_argument("--sizes", default=SIZES, help=f"MiB, with commas between (default: {SIZES})")
    parser.add_argument("--calls", help="names of calls, with commas between (default: all)")
    parser.add_argument("--json", type=Path, help="file for all samples")
    chosen = parser.parse_args()
    if chosen.mode == "graph" and os.environ.get("NCCL_GRAPH_REGISTER") != "0":
        sys.exit("Set NCCL_GRAPH_REGISTER=0: else NCCL itself registers the buffers of every graph, in both arms.")
    tracehook.enable()  # before CUDA is up, or segments could not come from elsewhere
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    source, wanted = tracehook.status()["memory"]["source"], chosen.memory.replace("pool", "torch")
    if source != wanted:
        sys.exit(f"--memory {chosen.memory} needs SYMM_REGISTER_MEMORY={wanted}, but segments come from {source}.")
    new, rows = allocator(chosen.memory, device), []
    for nbytes in [int(float(each) * MIB) for each in chosen.sizes.split(",")]:
        for name, call in calls_of(nbytes, new).items():
            if chosen.calls and name not in chosen.calls.split(","):
                continue
            arms = Arms(call, CALLS[chosen.mode][nbytes > SMALL], chosen.mode)
            rows.append(row_of(name, nbytes, pairs_of(arms, max(9, chosen.repetitions))))
            print(line(rows[-1]) + "\n" if dist.get_rank() == 0 else "", end="", flush=True)
            del arms
            gc.collect()  # no graph with registrations may live when they are switched off
    if dist.get_rank() == 0:
        if chosen.json:
            told = {"mode": chosen.mode, "memory": chosen.memory, "device": torch.cuda.get_device_name()}
            told |= {"torch": torch.__version__, "nccl": torch.cuda.nccl.version(), "ranks": dist.get_world_size()}
            told |= {"communicators": tracehook.status()["communicators"], "cases": rows}
            chosen.json.write_text(json.dumps(told))
        below = [f"{row['call']} {row['bytes'] / MIB:g} MiB" for row in rows if row["quotient"] < LIMIT]
        print(f"{len(rows)} cases, {len(below)} below {LIMIT}{': ' if below else ''}{', '.join(below)}", flush=True)
    dist.destroy_process_group()


main()
