"""What a scope of symmetric memory costs when nothing is new, beside SGLang's and vLLM's way; lookups and checks.

One process, one device, world size 1: ``tracehook rehearse -- python benchmarks/symmetric.py``, or without the first
part on a GPU. Each repetition takes all things in turn; a value is the best of some short loops. Prints a table, or
with ``--raw`` the values for run.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import repeat
from typing import Any

import native
import stats
import torch
import torch.distributed as dist
from others import leave, raw_communicator, sglang, vllm
from stats import Line

import tracehook
from tracehook import is_symmetric, symmetric

REPETITIONS = 31
SECONDS = 0.01  # for one value
SEGMENTS = (1, 32, 256)  # in each pool
WINDOWS = (1, 32, 512)  # on the communicator whose check is timed
SEGMENT = 12 << 20  # bytes; from 10 MiB on the allocator takes a segment for each tensor
BUFFER = 1 << 20
GOAL = 0.5  # of SGLang's

PEERS = {"tracehook": "tracehook", "sglang": "SGLang", "vllm": "vLLM"}


def lines() -> list[Line]:
    """Return what the table has, in order."""
    out = []
    for held in SEGMENTS:
        for kind, what in (("empty", "empty scope"), ("cached", "scope with a cached 1 MiB tensor")):
            where = f"{what}, {held} segment{'s' * (held > 1)}"
            out += [Line(f"{kind}_{held}_{peer}", f"{where}: {name}", "us") for peer, name in PEERS.items()]
            out += [
                Line(f"{kind}_{held}_ratio_sglang", "  tracehook / SGLang", "x", GOAL),
                Line(f"{kind}_{held}_ratio_vllm", "  tracehook / vLLM", "x"),
            ]
            if kind == "cached":
                text = "  the same less what the tensor costs outside, / SGLang"
                out.append(Line(f"{kind}_{held}_net_sglang", text, "x"))
                text = "  the least: torch's calls alone (begin, tensor, end)"
                out.append(Line(f"least_{held}", text, "us"))
                out.append(Line(f"least_{held}_ratio_sglang", "  the least / SGLang", "x"))
    out += [
        Line("tensor", "a cached 1 MiB tensor outside of all scopes", "us"),
        Line("disabled_tracehook", "disabled scope: tracehook", "us", 0.12),
        Line("disabled_sglang", "disabled scope: SGLang", "us"),
        Line("disabled_ratio", "  tracehook / SGLang", "x"),
        Line("is_symmetric_start", "is_symmetric, start of the storage", "us", 0.5),
        Line("is_symmetric_interior", "is_symmetric, inside of the storage", "us", 0.5),
        Line("is_symmetric_strided", "is_symmetric, not contiguous", "us"),
    ]
    for held in SEGMENTS:
        out.append(Line(f"scan_{held}_vllm", f"vLLM's scan, middle of {held} segment{'s' * (held > 1)}", "us"))
    for held in WINDOWS:
        where = f"{held} window{'s' * (held > 1)}"
        out += [
            Line(f"look_{held}", f"look for a known use, {where}", "ns", 100),
            Line(f"check_{held}", f"check_placement of it, {where}, no graph uses it", "ns", 100),
            Line(f"pinned_{held}", f"check_placement of it, {where}, a graph uses it", "ns", 100),
        ]
    out += [
        Line("mutex", "  in that: lock and unlock of an idle mutex", "ns"),
        Line("find", "  in that: find the communicator", "ns"),
        Line("capturing", "  in that, if no graph uses it: cudaStreamIsCapturing", "ns"),
    ]
    return out


Loop = Callable[[int], float]


def timed(body: Callable[[int], None]) -> Loop:
    """Return a loop for :func:`stats.best`."""

    def loop(count: int) -> float:
        begin = time.perf_counter_ns()
        body(count)
        return time.perf_counter_ns() - begin

    return loop


class Arms:
    """The things that are compared, each as a loop."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.group: Any = dist.group.WORLD
        self.comm = raw_communicator(self.group, device)
        self.kept: dict[str, list[torch.Tensor]] = {peer: [] for peer in PEERS}
        self.pool = torch.cuda.MemPool()
        sglang.prepare(device.index)
        vllm.prepare(device.index)

    def scope(self, peer: str) -> Any:
        """Return what opens a scope of `peer`."""
        if peer == "tracehook":
            return symmetric(self.group)
        return sglang.use_symmetric_memory(self.comm) if peer == "sglang" else vllm.symmetric_memory(self.comm)

    def grow(self, held: int) -> None:
        """Bring every pool to `held` large segments with windows, and one small one for the 1 MiB tensor."""
        for peer, kept in self.kept.items():
            while len(kept) < held:
                with self.scope(peer):
                    kept.append(torch.empty(SEGMENT, dtype=torch.uint8, device=self.device))
            with self.scope(peer):
                torch.empty(BUFFER, dtype=torch.uint8, device=self.device)
        counts = {
            "tracehook": tracehook.status()["pools"][0]["segments"],
            "windows": tracehook.status()["windows"][0]["windows"],
            "sglang": sglang.segments()[0],
            "registered": sglang.registered(self.comm),
            "vllm": vllm.segments(),
        }
        assert set(counts.values()) == {held + 1}, counts

    def empty_scopes(self) -> dict[str, Loop]:
        """Return a loop for each peer."""
        group, comm = self.group, self.comm
        use_symmetric_memory, symmetric_memory = sglang.use_symmetric_memory, vllm.symmetric_memory

        def tracehook_scope(count: int) -> None:
            for _ in repeat(None, count):
                with symmetric(group):
                    pass

        def sglang_scope(count: int) -> None:
            for _ in repeat(None, count):
                with use_symmetric_memory(comm):
                    pass

        def vllm_scope(count: int) -> None:
            for _ in repeat(None, count):
                with symmetric_memory(comm):
                    pass

        return {"tracehook": timed(tracehook_scope), "sglang": timed(sglang_scope), "vllm": timed(vllm_scope)}

    def scopes_with_a_tensor(self) -> dict[str, Loop]:
        """Return a loop for each peer; its tensor comes from the allocator's cache."""
        group, comm, device, empty, uint8 = self.group, self.comm, self.device, torch.empty, torch.uint8
        use_symmetric_memory, symmetric_memory = sglang.use_symmetric_memory, vllm.symmetric_memory

        def tracehook_scope(count: int) -> None:
            for _ in repeat(None, count):
                with symmetric(group):
                    tensor = empty(BUFFER, dtype=uint8, device=device)
                del tensor

        def sglang_scope(count: int) -> None:
            for _ in repeat(None, count):
                with use_symmetric_memory(comm):
                    tensor = empty(BUFFER, dtype=uint8, device=device)
                del tensor

        def vllm_scope(count: int) -> None:
            for _ in repeat(None, count):
                with symmetric_memory(comm):
                    tensor = empty(BUFFER, dtype=uint8, device=device)
                del tensor

        return {"tracehook": timed(tracehook_scope), "sglang": timed(sglang_scope), "vllm": timed(vllm_scope)}

    def tensor(self) -> Loop:
        """Return the same tensor without a scope."""
        device, empty, uint8 = self.device, torch.empty, torch.uint8

        def body(count: int) -> None:
            for _ in repeat(None, count):
                tensor = empty(BUFFER, dtype=uint8, device=device)
                del tensor

        return timed(body)

    def least(self) -> Loop:
        """Return the same tensor in a pool of torch, which is begun, ended and released by its own calls alone."""
        device, index, empty, uint8 = self.device, self.device.index, torch.empty, torch.uint8
        begin, end = torch._C._cuda_beginAllocateCurrentThreadToPool, torch._C._cuda_endAllocateToPool
        release, pool = torch._C._cuda_releasePool, self.pool.id

        def body(count: int) -> None:
            for _ in repeat(None, count):
                begin(index, pool)
                tensor = empty(BUFFER, dtype=uint8, device=device)
                end(index, pool)
                release(index, pool)
                del tensor

        return timed(body)

    def disabled_scopes(self) -> dict[str, Loop]:
        """Return a loop for each, and one that does nothing."""
        group, comm, use_symmetric_memory = self.group, self.comm, sglang.use_symmetric_memory

        def nothing(count: int) -> None:
            for _ in repeat(None, count):
                pass

        def tracehook_scope(count: int) -> None:
            for _ in repeat(None, count):
                with symmetric(group, disabled=True):
                    pass

        def sglang_scope(count: int) -> None:
            for _ in repeat(None, count):
                with use_symmetric_memory(comm, disabled=True):
                    pass

        return {"nothing": timed(nothing), "tracehook": timed(tracehook_scope), "sglang": timed(sglang_scope)}

    def lookups(self) -> dict[str, Loop]:
        """Return the questions whether a tensor is symmetric."""
        group, scan = self.group, vllm.is_symmetric_memory_tensor
        whole = self.kept["tracehook"][len(self.kept["tracehook"]) // 2]
        # vLLM scans in the order of addresses.
        theirs = sorted(self.kept["vllm"], key=torch.Tensor.data_ptr)
        middle = theirs[len(theirs) // 2]
        strided = whole.view(-1, 1024)[100:200, :512]
        for tensor in (whole, whole[4096:], strided):
            assert is_symmetric(tensor, group)
        assert scan(middle)
        assert not scan(whole)

        def ask(tensor: torch.Tensor) -> Loop:
            def body(count: int) -> None:
                for _ in repeat(None, count):
                    is_symmetric(tensor, group)

            return timed(body)

        def vllm_scan(count: int) -> None:
            for _ in repeat(None, count):
                scan(middle)

        return {
            "is_symmetric_start": ask(whole),
            "is_symmetric_interior": ask(whole[4096:]),
            "is_symmetric_strided": ask(strided),
            f"scan_{len(theirs)}_vllm": timed(vllm_scan),
        }


def native_checks(library: Any, stream: int) -> dict[str, Loop]:
    """Return the loops of placement.cpp."""
    library.make_world.restype = ctypes.c_void_p
    for name in ("look", "check", "find", "mutex", "capturing"):
        getattr(library, f"time_{name}").restype = ctypes.c_double

    def loop(name: str, world: int, *given: Any) -> Loop:
        function = getattr(library, f"time_{name}")
        return lambda count: function(ctypes.c_void_p(world), *given, ctypes.c_size_t(count))

    on = ctypes.c_void_p(stream)
    loops: dict[str, Any] = {}
    for held in WINDOWS:
        world, pinned = (library.make_world(ctypes.c_size_t(held)) for _ in range(2))
        library.pin_all(ctypes.c_void_p(pinned))
        loops |= {
            f"look_{held}": loop("look", world),
            f"check_{held}": loop("check", world, on),
            f"pinned_{held}": loop("check", pinned, on),
        }
    return loops | {
        "mutex": loop("mutex", world),
        "find": loop("find", world),
        "capturing": loop("capturing", world, on),
    }


def in_turn(loops: dict[str, Loop]) -> dict[str, float]:
    return {name: stats.best(loop, SECONDS) for name, loop in loops.items()}


def measure(device: torch.device) -> stats.Results:
    found: stats.Results = defaultdict(list)
    arms = Arms(device)
    tensor, disabled = arms.tensor(), arms.disabled_scopes()
    for held in SEGMENTS:
        arms.grow(held)
        empty, cached, lookups = arms.empty_scopes(), arms.scopes_with_a_tensor(), arms.lookups()
        for _ in range(REPETITIONS):
            nothing = stats.best(disabled["nothing"], SECONDS)
            outside = stats.best(tensor, SECONDS) - nothing
            found["tensor"].append(outside / 1000)
            for kind, loops in (("empty", empty), ("cached", cached)):
                cost = {name: value - nothing for name, value in in_turn(loops).items()}
                for peer in PEERS:
                    found[f"{kind}_{held}_{peer}"].append(cost[peer] / 1000)
                for other in ("sglang", "vllm"):
                    found[f"{kind}_{held}_ratio_{other}"].append(cost["tracehook"] / cost[other])
            found[f"cached_{held}_net_sglang"].append((cost["tracehook"] - outside) / (cost["sglang"] - outside))
            least = stats.best(arms.least(), SECONDS) - nothing
            found[f"least_{held}"].append(least / 1000)
            found[f"least_{held}_ratio_sglang"].append(least / cost["sglang"])
            for name, value in in_turn(lookups).items():
                found[name].append((value - nothing) / 1000)
    checks = native_checks(ctypes.CDLL(str(native.placement())), torch.cuda.Stream(device).cuda_stream)
    for _ in range(REPETITIONS):
        cost = in_turn(disabled)
        for peer in ("tracehook", "sglang"):
            found[f"disabled_{peer}"].append((cost[peer] - cost["nothing"]) / 1000)
        found["disabled_ratio"].append((cost["tracehook"] - cost["nothing"]) / (cost["sglang"] - cost["nothing"]))
        for name, value in in_turn(checks).items():
            found[name].append(value)
    return found


def main(arguments: list[str]) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29532")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    os.environ.setdefault("SYMM_REGISTER_GUARD", "off")  # what is compared registers as without tracehook
    tracehook.enable()
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=device)
    found = measure(device)
    if "--raw" in arguments:
        stats.hand_over(found)
    else:
        stats.show(lines(), found)
    leave()


if __name__ == "__main__":
    main(sys.argv[1:])
