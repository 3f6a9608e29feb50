"""How long `tracehook audit` takes, and how much memory, over the logs of very many ranks.

The logs are multiplied (tests/support/multiplied.py) from those of a real rehearsed job on four ranks.

    python benchmarks/audit_scale.py [--ranks 64,256,1024,4096] [--events 2000] [--repeat 3] [--from DIR] [--export]
                                     [--on ray] [--folders] [--logs DIR] [--draw FILE.png]

A picture needs matplotlib. Beside other work the processor's seconds say more than those of the clock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.multiplied import Log, multiply, read  # noqa: E402

SCRIPTS = Path(sys.executable).parent
JOB = ROOT / "tests" / "rehearsal" / "jobs" / "symmetric_groups.py"
TEMPLATE_RANKS = 4
_OF_A_HOST = 256


def rehearse(directory: Path) -> None:
    """Run the job that is multiplied."""
    launch = [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node", str(TEMPLATE_RANKS), JOB]
    command = [SCRIPTS / "tracehook", "rehearse", "--devices", str(TEMPLATE_RANKS), "--log", directory, "--", *launch]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Measured(NamedTuple):
    """One command of tracehook on one job."""

    command: str
    ranks: int
    seconds: float
    processor: float  # seconds, of all cores
    most: float  # MiB


def measure(*command: object) -> tuple[float, float, float, int]:
    """Return seconds, seconds of the processor, MiB at the most, and the exit status of one command of tracehook."""
    began = time.monotonic()
    line = [str(SCRIPTS / "tracehook"), *map(str, command)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        print(said)
    seconds, processor = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return seconds, processor, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def logs_of(template: list[Log], folder: Path, ranks: int, events: int, folders: bool) -> Path:
    """Make the logs, unless they are there; return their directory."""
    target = folder / f"ranks{ranks}-{events}"
    if target.exists():
        return target
    target.mkdir(parents=True)
    multiply(template, target, ranks, events)
    for file in list(target.iterdir()) if folders else []:
        host = target / f"host{int(file.name.split('.rank')[1].partition('.')[0]) // _OF_A_HOST}"
        host.mkdir(exist_ok=True)
        file.rename(host / file.name)
    return target


def draw(all_measured: list[Measured], file: Path) -> None:
    """Draw how seconds of the processor and memory grow with the ranks: the median of each."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for command in dict.fromkeys(each.command for each in all_measured):
        its = [each for each in all_measured if each.command == command]
        ranks = sorted({each.ranks for each in its})
        for axes, field in ((left, "processor"), (right, "most")):
            values = [median(getattr(each, field) for each in its if each.ranks == count) for count in ranks]
            axes.plot(ranks, values, marker="o", label=command)
            axes.set(xscale="log", yscale="log", xlabel="ranks, 2,000 events each", xticks=ranks)
            axes.set_xticks(ranks, [f"{count:,}" for count in ranks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    for axes, ticks in ((left, (1, 2, 5, 10, 20, 50, 100)), (right, (100, 200, 500, 1000, 2000))):
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    left.set_ylabel("seconds of the processor")
    right.set_ylabel("memory, MiB")
    left.legend(frameon=False, fontsize="small")
    figure.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,256,1024,4096")
    parser.add_argument("--events", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--from", dest="source", type=Path, help="logs of four ranks, instead of a rehearsal")
    parser.add_argument("--export", action="store_true", help="also export the logs to Parquet")
    parser.add_argument("--report", action="store_true", help="also make the report")
    parser.add_argument("--on", help="also let `tracehook audit --on` do it; its memory is that of the command alone")
    parser.add_argument("--folders", action="store_true", help=f"a folder for each {_OF_A_HOST} ranks")
    parser.add_argument("--logs", type=Path, help="where the multiplied logs stay, for the next time")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw time and memory")
    arguments = parser.parse_args()
    all_measured = []
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.source or Path(scratch, "source")
        if arguments.source is None:
            rehearse(source)
        template = read(source)
        for ranks in (int(part) for part in arguments.ranks.split(",")):
            target = logs_of(template, arguments.logs or Path(scratch), ranks, arguments.events, arguments.folders)
            size = sum(path.stat().st_size for path in target.rglob("*.jsonl")) / (1 << 20)
            out = Path(scratch, "out")
            commands: dict[str, tuple[object, ...]] = {"audit": ("audit", target)}
            if arguments.export:
                commands["export"] = ("export", target, out)
            if arguments.report:
                commands |= {"report": ("report", target, "-o", Path(scratch, "report.html"))}
            if arguments.on:
                commands |= {f"audit --on {arguments.on}": ("audit", "--on", arguments.on, target)}
            for _ in range(arguments.repeat):
                shutil.rmtree(out, ignore_errors=True)
                for name, command in commands.items():
                    seconds, processor, most, status = measure(*command)
                    all_measured.append(Measured(name, ranks, seconds, processor, most))
                    print(
                        f"{ranks:5} ranks, {size:6.0f} MiB: {name:20} {seconds:6.2f} s, {processor:6.2f} s of the "
                        f"processor, {most:6.0f} MiB, status {status}",
                        flush=True,
                    )
            if arguments.logs is None:
                shutil.rmtree(target)
    if arguments.draw is not None:
        draw(all_measured, arguments.draw)


if __name__ == "__main__":
    main()
