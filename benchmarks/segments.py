"""What segments cost that come from the driver's virtual memory: SYMM_REGISTER_MEMORY=vmm against torch (cudaMalloc).

    python benchmarks/segments.py [--rounds 5] [--json PATH]

Processes with either setting take turns. Each makes a tensor in an empty cache, which asks the driver for a segment,
and gives the segment back with ``empty_cache``; both are timed apart. A line has the median of each, and the quotient
vmm / torch of the processes of one round: its median, between the smallest and the largest.

Then 1,000 segments of 20 MiB come and go, fifty at a time. Before and after, the process must have the same number of
entries in /proc/self/fd, and the device as much free memory; nothing else may use the device meanwhile. With two
devices that happens in two ranks, and each segment receives an all_gather, so it is registered if the setting lets it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tracehook

MIB = 1 << 20
REQUESTS = {1 * MIB: "2 MiB", 20 * MIB: "20 MiB", 64 * MIB: "64 MiB", 512 * MIB: "512 MiB"}  # and their segments
WARM, SAMPLES = 5, 40
AT_A_TIME, SEGMENT = 50, 20 * MIB
ARMS = ("torch", "vmm")
SECONDS = 120  # that a process may take


def give_back() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def times() -> dict[str, dict[str, float]]:
    """Return the median microseconds of an allocation and of a free, by size of the segment."""
    found = {}
    for nbytes, name in REQUESTS.items():
        taken: dict[str, list[float]] = {"alloc": [], "free": []}
        for _ in range(WARM + SAMPLES):
            give_back()
            begin = time.perf_counter()
            tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            taken["alloc"].append(1e6 * (time.perf_counter() - begin))
            del tensor
            torch.cuda.synchronize()
            begin = time.perf_counter()
            torch.cuda.empty_cache()
            taken["free"].append(1e6 * (time.perf_counter() - begin))
        found[name] = {what: statistics.median(each[WARM:]) for what, each in taken.items()}
    return found


def come_and_go(segments: int) -> None:
    """Make so many segments, some at a time, use each, and give them back."""
    for _ in range(segments // AT_A_TIME):
        tensors = [torch.empty(SEGMENT, dtype=torch.uint8, device="cuda") for _ in range(AT_A_TIME)]
        for tensor in tensors:
            if dist.is_initialized():
                part = tensor.chunk(dist.get_world_size())[dist.get_rank()]
                dist.all_gather_into_tensor(tensor, part)
        del tensors
        give_back()


def held() -> dict[str, int]:
    """Return the descriptors of this process and the free bytes of the device."""
    give_back()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "free": torch.cuda.mem_get_info()[0]}  # noqa: PTH208


def leaks(segments: int) -> dict[str, Any]:
    """Return what was held before and after the segments, and the registrations that were made."""
    come_and_go(2 * AT_A_TIME)  # what is made once, is made here
    before = held()
    come_and_go(segments)
    after = held()
    made = sum(int(each["made"]) for each in tracehook.status()["communicators"])
    return {"before": before, "after": after, "registrations": made}


def child(what: str, segments: int) -> None:
    """Measure in this process; rank 0 prints a line of JSON with the findings of all ranks."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl", device_id=device)
    found = [times() if what == "times" else leaks(segments)]
    memory = tracehook.status()["memory"]
    if memory["source"] != os.environ["SYMM_REGISTER_MEMORY"]:
        sys.exit(f"Segments come from {memory['source']}, not from {os.environ['SYMM_REGISTER_MEMORY']}.")
    if dist.is_initialized():
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found[0])
        found = everyone
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def start(arm: str, what: str, segments: int, ranks: int) -> list[Any]:
    """Return what a process, or each rank, with this setting finds."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, __file__, "--child", what, "--segments", str(segments)]
    environment = os.environ | {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_MEMORY": arm, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS)
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(rounds: int) -> dict[str, list[Any]]:
    """Print how long allocations and frees take; return what each process found, by setting."""
    found: dict[str, list[Any]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
            found[arm] += start(arm, "times", 0, 1)
    for name in REQUESTS.values():
        for what in ("alloc", "free"):
            torch_us, vmm_us = ([run[name][what] for run in found[arm]] for arm in ARMS)
            quotients = [vmm / plain for plain, vmm in zip(torch_us, vmm_us, strict=True)]
            print(
                f"{what:5} of a segment of {name:>7}: torch {statistics.median(torch_us):9.1f} us, "
                f"vmm {statistics.median(vmm_us):9.1f} us; vmm / torch {statistics.median(quotients):.3f} "
                f"[{min(quotients):.3f} .. {max(quotients):.3f}] n={rounds}",
                flush=True,
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="time segments of vmm against those of cudaMalloc; look for leaks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segments", type=int, default=1000, help="that come and go")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    parser.add_argument("--child", choices=["times", "leaks"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child, chosen.segments)
        return 0
    found: dict[str, Any] = {"times": compare(chosen.rounds), "leaks": {}}
    ranks, leaked = min(2, torch.cuda.device_count()), False
    for arm in ARMS:
        found["leaks"][arm] = start(arm, "leaks", chosen.segments, ranks)
        for rank, each in enumerate(found["leaks"][arm]):
            before, after = each["before"], each["after"]
            leaked |= before != after
            print(
                f"{arm:5} rank {rank}: {chosen.segments} segments, {each['registrations']} registrations; "
                f"descriptors {before['descriptors']} -> {after['descriptors']}, free "
                f"{before['free'] / MIB:.0f} -> {after['free'] / MIB:.0f} MiB: "
                f"{'equal' if before == after else 'NOT EQUAL'}",
                flush=True,
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(found))
    return int(leaked)


if __name__ == "__main__":
    sys.exit(main())
