"""Every command that reads logs, on a directory of logs, where no torch is installed: ``python readers.py DIR``.

Ends with status 1, and says which command failed, unless each does what it should. ``make wheel-readers`` runs it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

FINDS = {  # a command, and a word of what it prints
    "--version": "tracehook ",
    "jobs {logs}": "ranks 0-3",
    "summary {logs}": "processes",
    "summary --paths {logs}": "path",
    "watch --once {logs}": "ended",
    "audit {logs}": "Clean",
    "report {logs} -o {out}/report.html": "report.html",
    "timeline {logs} -o {out}/trace.pftrace": "trace.pftrace",
    "export {logs} {out}/parquet": "of logs",
}
REFUSES = {  # a command that needs torch, its exit status, and a word of its line
    "doctor": (1, "torch"),
    "tune": (2, "needs torch"),
    "rehearse --devices 2 -- true": (2, "native part"),
}


def run(command: str, **places: Path) -> tuple[int, str]:
    """Run a command of tracehook; return its status, and what it said."""
    words = [part.format(**places) for part in command.split()]
    done = subprocess.run([sys.executable, "-m", "tracehook", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Run all of them."""
    if importlib.util.find_spec("torch") is not None:
        sys.exit("torch is installed here; expected an environment without it")
    logs, out = Path(sys.argv[1]).resolve(), Path("read")
    out.mkdir(exist_ok=True)
    bad = 0
    expected = {command: (0, word) for command, word in FINDS.items()} | REFUSES
    for command, (wanted, word) in expected.items():
        status, said = run(command, logs=logs, out=out)
        well = status == wanted and word in said and "Traceback" not in said
        bad += not well
        print(f"{'ok ' if well else 'BAD'} {status} tracehook {command}", flush=True)
        if not well:
            print(said)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
