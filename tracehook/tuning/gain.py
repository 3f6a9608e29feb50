"""What a registration gains on this machine: one call between two devices, timed with and without."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tracehook.tuning.table import TableError, load

SIZE = "32MiB"
SECONDS = 60.0  # the ranks start in some ten
_OPTIONS = "--ranks 2 --operations all_gather --registered all_gather --mode eager --samples 20 --budget 0"
# What a launcher or a log has set is of this process, not of the ranks that it starts.
_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SYMM_REGISTER_LOG", "SYMM_REGISTER_METRICS")
_NEEDED = {"SYMM_REGISTER_MEMORY": "vmm", "SYMM_REGISTER_LOCAL": "own"}


def measured() -> str:
    """Time an all_gather in plain and on registered memory, by ``tracehook tune``; return a sentence with both times.

    Starts two processes on the first two devices. A failure is a sentence, too.
    """
    settings = {name: value for name, value in os.environ.items() if name not in _OWN} | _NEEDED
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "tuned.json"
        options = f"{_OPTIONS} --smallest {SIZE} --largest {SIZE}".split()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tracehook", "tune", *options, "--out", str(out)],
                env=settings,
                capture_output=True,
                encoding="utf-8",
                timeout=SECONDS,
                check=False,
            )
            points = [point for row in load(out).registered.values() for point in row]
        except subprocess.TimeoutExpired:
            return f"not measured: two ranks did not end within {SECONDS:g} s"
        except TableError:
            why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            return f"not measured: {why}"
    if not points:
        return "not measured: with SYMM_REGISTER_MEMORY=vmm no segment of this machine can be registered with effect"
    [point] = points
    return (
        f"an all_gather of {SIZE} between two devices takes {point.plain_us:.0f} us, on registered memory "
        f"{point.registered_us:.0f} us: {point.gain:.2f} times as fast with SYMM_REGISTER_MEMORY=vmm"
    )
