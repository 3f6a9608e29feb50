"""A launcher, and the operator beside it: starts ranks, ends those that are left when one fails, and all in the end.

Arguments: how many ranks, for how many seconds they may run, the signal that ends all ranks then (``SIGTERM`` of a
scheduler, ``SIGINT`` of a terminal), and the job with its arguments. A rank that fails ends the others at once by
SIGTERM, as torchrun does. The seconds count from when all ranks have made the file ``started RANK`` beside TEST_STORE.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun has it: of a warm start
LOOK, GRACE = 0.05, 10.0  # seconds


def send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to those that run."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def main() -> None:
    ranks, seconds, number = int(sys.argv[1]), float(sys.argv[2]), signal.Signals[sys.argv[3]]
    with tempfile.TemporaryDirectory() as scratch:
        common = os.environ | {"WORLD_SIZE": str(ranks), "TEST_STORE": f"{scratch}/store"}
        processes = [
            subprocess.Popen([PYTHON, *sys.argv[4:]], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        end = float("inf")
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                send(processes, signal.SIGTERM)
            elif time.monotonic() > end:
                send(processes, number)
            else:
                if end == float("inf") and len(list(Path(scratch).glob("started *"))) == ranks:
                    end = time.monotonic() + seconds
                time.sleep(LOOK)
                continue
            deadline = time.monotonic() + GRACE
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(LOOK)
            send(processes, signal.SIGKILL)
        print(f"statuses {[process.wait() for process in processes]}", flush=True)


main()
