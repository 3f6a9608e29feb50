"""How long `tracehook audit` takes, and how much memory, over the logs of very many ranks, and over their export.

The logs are multiplied (tests/support/multiplied.py) from those of a real rehearsed job on four ranks.

    python benchmarks/audit_scale.py [--ranks 64,128,256,512,1024] [--events 2000] [--repeat 3] [--from DIR] [--export]
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.multiplied import multiply, read  # noqa: E402

SCRIPTS = Path(sys.executable).parent
JOB = ROOT / "tests" / "rehearsal" / "jobs" / "symmetric_groups.py"
TEMPLATE_RANKS = 4


def rehearse(directory: Path) -> None:
    """Run the job that is multiplied."""
    launch = [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node", str(TEMPLATE_RANKS), JOB]
    command = [SCRIPTS / "tracehook", "rehearse", "--devices", str(TEMPLATE_RANKS), "--log", directory, "--", *launch]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(*command: object) -> tuple[float, float, int]:
    """Return seconds, MiB at the most, and the exit status of one command of tracehook."""
    began = time.monotonic()
    line = [str(SCRIPTS / "tracehook"), *map(str, command)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        print(said)
    return time.monotonic() - began, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,128,256,512,1024")
    parser.add_argument("--events", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--from", dest="source", type=Path, help="logs of four ranks, instead of a rehearsal")
    parser.add_argument("--export", action="store_true", help="also export the logs to Parquet, and audit that")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.source or Path(scratch, "source")
        if arguments.source is None:
            rehearse(source)
        template = read(source)
        for ranks in (int(part) for part in arguments.ranks.split(",")):
            target = Path(scratch, f"ranks{ranks}")
            target.mkdir()
            events = multiply(template, target, ranks, arguments.events)
            size = sum(path.stat().st_size for path in target.iterdir()) / (1 << 20)
            out = Path(scratch, "out")
            commands: list[tuple[object, ...]] = [("audit", target)]
            if arguments.export:
                commands += [("export", "--over", target, out), ("audit", out)]
            for _ in range(arguments.repeat):
                shutil.rmtree(out, ignore_errors=True)
                for command in commands:
                    seconds, most, status = measure(*command)
                    what = f"{command[0]} {'of the export' if command[-1] is out and len(command) == 2 else ''}"
                    print(
                        f"{ranks:5} ranks, {events:9,} events, {size:6.0f} MiB: {what:20} {seconds:6.2f} s, "
                        f"{seconds / events * 1e6:6.2f} us an event, {most:6.0f} MiB, status {status}",
                        flush=True,
                    )
            shutil.rmtree(target)


if __name__ == "__main__":
    main()
