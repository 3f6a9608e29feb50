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

import agreement
import native
import stats
import symmetric
import torch

from tracehook.versions import of_torch

HERE = Path(__file__).parent
PAIRS_OF_RUNS = 9
MOST_RANKS = 4


def output(script: str, *arguments: str, ranks: int = 0) -> str:
    """Run `script` where devices are, under torchrun if there are `ranks`, and return what it printed."""
    folder = Path(sys.executable).parent
    command = [str(HERE / script), *arguments]
    if ranks:
        launcher = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        command = [str(folder / launcher[0]), *launcher[1:], *command]
    else:
        command = [sys.executable, *command]
    if not torch.cuda.is_available():
        command = [str(folder / "tracehook"), "rehearse", "--devices", str(max(ranks, 1)), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{script} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def results(script: str, *arguments: str, ranks: int = 0) -> stats.Results:
    """Run `script` as :func:`output` does, and collect its RESULT lines."""
    found: stats.Results = defaultdict(list)
    for name, value in re.findall(
        r"^RESULT (?:(\w+) )?([-+.\de]+)$", output(script, *arguments, ranks=ranks), re.MULTILINE
    ):
        found[name].append(float(value))
    return found


def beside(name: str, without: str, kind: str, limit: float) -> None:
    """Show what `kind` of hot_path.py costs beside `without`, from runs in turn."""
    library = str(native.hot_path())
    ratios, noise = [], []
    for _ in range(PAIRS_OF_RUNS):
        first, ours, again = (results("hot_path.py", which, library)[""][0] for which in (without, kind, without))
        ratios.append(2 * ours / (first + again))
        noise.append(again / first)
    print(stats.describe(name, ratios, "x", limit))
    print(stats.describe("  (without / without: the noise)", noise, "x"), flush=True)


def main() -> None:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "emulated device"
    print(f"torch {torch.__version__}, {where}", flush=True)

    beside("alloc+free pair, hook / bare tracker", "bare", "hook", 1.03)
    if of_torch(torch.__version__).group == "nccl2":
        beside("alloc+free pair, hook and torch's group / the group alone", "group", "group+hook", 1.05)

    calls = results("calls.py", str(native.caller()))
    print(stats.describe("interposed call, added", calls["time_empty_calls"], "ns", 40))
    print(stats.describe("call in a group of its own, added", calls["time_grouped_calls"], "ns"))
    print(stats.describe("new communicator, 1000 segments / bare calls", calls["new_communicator_ratio"], "x", 1.1))
    print(stats.describe("  (bare ncclCommRegister)", calls["bare_register_ns"], "ns"), flush=True)

    through = results("ctypes_calls.py")
    print(stats.describe("collective through ctypes, added", through["ctypes_call"], "ns", 100))
    print(stats.describe("  (the same twice: the noise)", through["ctypes_call_noise"], "ns"))
    print(stats.describe("  at a known place in a window, added", through["ctypes_call_in_window"], "ns"), flush=True)

    stats.show(symmetric.lines(), results("symmetric.py", "--raw"))
    most = torch.cuda.device_count() if torch.cuda.is_available() else MOST_RANKS
    for ranks in range(2, min(most, MOST_RANKS) + 1, 2):
        print(f"{ranks} ranks:")
        stats.show(agreement.LINES, results("agreement.py", "--raw", ranks=ranks))
    if most >= MOST_RANKS:
        print(output("window_count.py", ranks=MOST_RANKS), end="")


if __name__ == "__main__":
    main()
