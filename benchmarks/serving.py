"""What an hour of serving costs the log: bytes, and CPU time of the log's thread.

Two ranks call 6,000 small collectives a second, and 100 segments a second come and go. Each rank prints a line at the
end: ``tracehook rehearse --devices 2 --hang-timeout 0 --log DIR -- torchrun --standalone --nproc-per-node 2
benchmarks/serving.py MINUTES``.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import tracehook
from tracehook.log import threads

COLLECTIVES = 6_000  # a second
SEGMENTS = 100  # a second
SEGMENT = 32 << 20  # bytes
TICK = 0.01  # seconds
HOUR = 3600.0


def cpu_of_log() -> float:
    """Return how many seconds the log's thread has run."""
    (thread,) = (thread.native_id for thread in threads.living() if thread.name == "tracehook-log")
    fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_all() -> float:
    """Return how many seconds all threads of this process have run."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def bytes_on_disk() -> int:
    """Return what the files of this process take."""
    log = Path(str(tracehook.status()["log"]))
    return sum(file.stat().st_blocks * 512 for file in log.parent.glob(f"*.{os.getpid()}.*"))


def serve(seconds: float, device: torch.device) -> tuple[int, int]:
    """Work at the wanted rate, as many ticks on each rank; return how many collectives and segments there were."""
    small = torch.ones(1024, device=device)
    begin = time.monotonic()
    ticks, collectives, segments = round(seconds / TICK), round(COLLECTIVES * TICK), round(SEGMENTS * TICK)
    for tick in range(ticks):
        time.sleep(max(begin + tick * TICK - time.monotonic(), 0.0))
        for _ in range(collectives):
            dist.all_reduce(small)
        for _ in range(segments):
            torch.empty(SEGMENT, dtype=torch.uint8, device=device)
            torch.cuda.empty_cache()
    return ticks * collectives, ticks * segments


def main() -> None:
    """Serve, and say what it took."""
    seconds = 60 * float(sys.argv[1])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    of_log, of_all, began = cpu_of_log(), cpu_of_all(), time.monotonic()
    collectives, segments = serve(seconds, device)
    took = time.monotonic() - began
    of_log, of_all = cpu_of_log() - of_log, cpu_of_all() - of_all
    rates = f"{collectives / took:.0f} collectives and {segments / took:.1f} segments a second"
    cost = f"the log's thread ran {of_log * HOUR / took:.1f} s an hour, {of_log / of_all:.2%} of the process"
    size = f"files of {bytes_on_disk() / 1e6:.1f} MB"
    print(f"rank {dist.get_rank()}: {took:.0f} s, {rates}; {cost}; {size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
