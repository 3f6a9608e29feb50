"""Run all benchmarks: on the GPU if torch sees one, else in a rehearsal. ``make bench`` calls this.

Only ratios and differences are shown, each from things measured side by side in this run, with the middle half of the
repetitions; absolute times of a shared machine say little.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import native
import stats
import torch

HERE = Path(__file__).parent
PAIRS_OF_RUNS = 9


def results(script: str, *arguments: str) -> dict[str, list[float]]:
    """Run `script` where devices are and collect its RESULT lines."""
    command = [sys.executable, str(HERE / script), *arguments]
    if not torch.cuda.is_available():
        command = [str(Path(sys.executable).parent / "tracehook"), "rehearse", "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{script} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in re.findall(r"^RESULT (?:(\w+) )?([-+.\de]+)$", done.stdout, re.MULTILINE):
        found[name].append(float(value))
    return found


def main() -> None:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "emulated device"
    print(f"torch {torch.__version__}, {where}", flush=True)

    bare_library = str(native.bare_tracker())
    ratios, noise = [], []
    for _ in range(PAIRS_OF_RUNS):
        bare, hook, again = (results("hot_path.py", kind, bare_library)[""][0] for kind in ("bare", "hook", "bare"))
        ratios.append(2 * hook / (bare + again))
        noise.append(again / bare)
    print(stats.describe("alloc+free pair, hook / bare tracker", ratios, "x", 1.03))
    print(stats.describe("  (bare tracker / bare tracker: the noise)", noise, "x"), flush=True)

    calls = results("calls.py", str(native.caller()))
    print(stats.describe("interposed call, added", calls["time_empty_calls"], "ns", 100))
    print(stats.describe("call in a group of its own, added", calls["time_grouped_calls"], "ns"))
    print(stats.describe("new communicator, 1000 segments / bare calls", calls["new_communicator_ratio"], "x", 1.1))
    print(stats.describe("  (bare ncclCommRegister)", calls["bare_register_ns"], "ns"))


if __name__ == "__main__":
    main()
