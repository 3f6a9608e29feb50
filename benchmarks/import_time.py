"""What ``SYMM_REGISTER_HOOK=1`` adds to ``import torch``: processes with and without it, in turn.

Prints lines ``RESULT name value``, in milliseconds: the difference of two processes, and of two without it (the noise).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PAIRS = 31
IMPORT = "import time; begin = time.perf_counter(); import torch; print((time.perf_counter() - begin) * 1000)"


def milliseconds(environment: dict[str, str]) -> float:
    """Return how long a new process takes to import torch."""
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    without = {name: value for name, value in os.environ.items() if not name.startswith("SYMM_REGISTER_")}
    with tempfile.TemporaryDirectory() as logs:
        hooked = without | {"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_LOG": logs}
        milliseconds(hooked)  # from now on all files are in memory
        for _ in range(PAIRS):
            first, ours, again = milliseconds(without), milliseconds(hooked), milliseconds(without)
            print(f"RESULT import_torch {ours - (first + again) / 2}")
            print(f"RESULT import_torch_noise {again - first}")
            print(f"RESULT import_torch_alone {first}", flush=True)


if __name__ == "__main__":
    main()
