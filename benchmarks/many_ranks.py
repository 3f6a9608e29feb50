"""What a rehearsal of many ranks on one machine takes: time, and memory of a rank.

``python benchmarks/many_ranks.py RANKS... [--values off]``. More than 64 ranks are rehearsed as several hosts of 64
devices or fewer, each with a torchrun of its own. The job: six all-reduces of 1 MiB, over all ranks and over every
second one, and three steps of DDP with a model of 4 MiB. The rehearsal must break no rule, and its log must be clean.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SCRIPTS = Path(sys.executable).parent
MOST_DEVICES = 64
FOLDER = "MANY_RANKS_FOLDER"
MIB = 1 << 20


def work(rank: int, folder: Path) -> None:
    """Be one rank; when the first collective is over, leave a file with its time and our process id."""
    import torch
    import torch.distributed as dist
    from torch import nn

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ranks = dist.get_world_size()
    even = dist.new_group(range(0, ranks, 2))
    tensor = torch.full((MIB // 4,), float(rank)).to(device)
    for number in range(3):
        total = tensor.clone()
        dist.all_reduce(total)
        assert total[-1].item() == sum(range(ranks))
        if number == 0:
            (folder / str(rank)).write_text(f"{os.getpid()} {time.time()}")
        if rank % 2 == 0:
            part = tensor.clone()
            dist.all_reduce(part, group=even)
            assert part[-1].item() == sum(range(0, ranks, 2))
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512) for _ in range(4)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 512, device=device)).square().mean()
        loss.backward()
        optimizer.step()
    losses = [None] * ranks
    dist.all_gather_object(losses, loss.item())
    assert len(set(losses)) == 1, losses
    dist.destroy_process_group()


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def command(ranks: int) -> list[str]:
    """Return the command of a job of so many ranks."""
    hosts = -(-ranks // MOST_DEVICES)
    torchrun = [str(SCRIPTS / "torchrun"), "--nproc-per-node", str(ranks // hosts)]
    if hosts == 1:
        return [*torchrun, "--standalone", __file__]
    torchrun += ["--nnodes", str(hosts), "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--node-rank"]
    each = f'NCCL_HOSTID=$host {shlex.join(torchrun)} $host {shlex.quote(__file__)} & all="$all $!"'
    return [
        "bash",
        "-c",
        f"for host in $(seq 0 {hosts - 1}); do {each}; done; for one in $all; do wait $one || exit; done",
    ]


def available() -> float:
    """Return MiB that programs could still have on this machine."""
    return int(re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[1]) / 1024


class Memory(threading.Thread):
    """Looks at the memory of all ranks from time to time, and keeps the look at which it was most.

    A look takes long where ranks are many, and some may have ended before it is over. So it also keeps how much the
    whole machine had less than at the beginning.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.over = threading.Event()
        self.shares: list[float] = []  # MiB of each rank (PSS)
        self._before = self._least = available()

    @property
    def taken(self) -> float:
        """MiB that the machine had less at the most."""
        return self._before - self._least

    def run(self) -> None:
        """Look until it is over."""
        due = 0.0
        while not self.over.wait(0.1):
            self._least = min(self._least, available())
            begin = time.monotonic()
            if begin < due:
                continue
            shares = []
            for path in self._folder.iterdir():
                self._least = min(self._least, available())
                try:
                    told = Path(f"/proc/{path.read_text().split()[0]}/smaps_rollup").read_text()
                except (OSError, IndexError):
                    continue  # not written yet, or ended
                shares.append(int(re.search(r"^Pss: +(\d+)", told, re.MULTILINE)[1]) / 1024)
            self.shares = max(self.shares, shares, key=sum)
            due = time.monotonic() + max(0.5, 5 * (time.monotonic() - begin))


def measure(ranks: int, options: list[str]) -> str:
    """Rehearse and audit; return a row of the table."""
    with tempfile.TemporaryDirectory() as kept:
        folder, log = Path(kept, "ranks"), Path(kept, "log")
        folder.mkdir()
        memory = Memory(folder)
        memory.start()
        rehearse = [SCRIPTS / "tracehook", "rehearse", "--warm", "--devices", str(min(ranks, MOST_DEVICES)), *options]
        before, begin, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), time.time()
        job = [*rehearse, "--log", log, "--", *command(ranks)]
        ran = subprocess.run(job, env=os.environ | {FOLDER: str(folder)}, capture_output=True, text=True)
        wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        memory.over.set()
        memory.join()
        audit = subprocess.run([SCRIPTS / "tracehook", "audit", log], capture_output=True, text=True)
        if ran.returncode or audit.returncode or len(list(folder.iterdir())) != ranks:
            sys.exit(f"{ran.stdout}\n{ran.stderr}\n{audit.stdout}\nexit statuses {ran.returncode}, {audit.returncode}")
        first = max(float(path.read_text().split()[1]) for path in folder.iterdir()) - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shares = memory.shares
    told = f"{sum(shares) / len(shares):.0f} MiB ({max(shares):.0f})" if len(shares) == ranks else "not seen"
    values, machine = " ".join(options) or "computed", f"{memory.taken / ranks:.0f} MiB"
    return f"| {ranks} | {values} | {first:.0f} s | {wall:.0f} s | {cpu:.0f} s | {told} | {machine} | clean |"


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description="measure rehearsals of many ranks")
    parser.add_argument("ranks", type=int, nargs="+")
    parser.add_argument("--values", choices=["off"])
    chosen = parser.parse_args()
    print(
        "| ranks | values | first collective | in all | CPU | memory of a rank, mean (most) | of the machine | audit |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for ranks in chosen.ranks:
        print(measure(ranks, ["--values", chosen.values] if chosen.values else []), flush=True)


if __name__ == "__main__":
    if FOLDER in os.environ:
        work(int(os.environ["RANK"]), Path(os.environ[FOLDER]))
    else:
        main()
