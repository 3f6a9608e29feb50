"""What ``SYMM_REGISTER_HOOK=1`` adds to ``import torch``, alone and with a log, in processes in turn.

torch calls ``tracehook._autoload`` in its last line. Here torch is told not to, and the same call comes after it: that
is timed alone, because an import of torch varies by more than what is to be seen.

Prints lines ``RESULT name value`` in milliseconds, each less what it takes with the variable unset.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

TURNS = 11
IMPORT = """
import time, torch
begin = time.perf_counter()
import tracehook._autoload
tracehook._autoload.autoload()
print((time.perf_counter() - begin) * 1000)
"""


def milliseconds(environment: dict[str, str]) -> float:
    """Return how long a new process takes from the end of torch's own import to its return."""
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    without = {name: value for name, value in os.environ.items() if not name.startswith("SYMM_REGISTER_")}
    without["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    with tempfile.TemporaryDirectory() as logs:
        hooked = without | {"SYMM_REGISTER_HOOK": "1"}
        logged = hooked | {"SYMM_REGISTER_LOG": logs}
        milliseconds(logged)  # from now on all files are in memory
        for _ in range(TURNS):
            alone, on, with_log, again = (milliseconds(each) for each in (without, hooked, logged, without))
            print(f"RESULT import_torch {on - alone}")
            print(f"RESULT import_torch_with_log {with_log - alone}")
            print(f"RESULT import_torch_noise {again - alone}", flush=True)


if __name__ == "__main__":
    main()
