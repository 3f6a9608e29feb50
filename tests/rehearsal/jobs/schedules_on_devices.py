"""Play seeds of random_schedule.py on the devices of this machine, each as often as it takes new processes.

Arguments: the ranks, the first seed, how many, and what else random_schedule.py takes. On real devices a symmetric
kernel that waits for a rank outlives every abort. The seed that left it is over and judged, but its processes can't
play another one, so the next seed begins in new ones. The status is 0 if no seed went wrong.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun has it: of a warm start
STUCK = 3  # the status of a job with a seed that left a device busy
PATIENCE = 120.0  # seconds for the processes to start; a seed takes a second or two, and 60 at most
SEED = 10.0


def played(ranks: int, first: int, count: int, arguments: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Play seeds until one leaves a device busy; return the status, and what rank 0 told."""
    job = [PYTHON, str(HERE / "random_schedule.py"), str(first), str(count), *arguments]
    command = [sys.executable, str(HERE / "launch.py"), str(ranks), *job]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE + SEED * count)
    print(done.stdout, end="", flush=True)
    return done.returncode, [json.loads(told) for told in re.findall(r"^fact \d+ (.*)$", done.stdout, re.MULTILINE)]


def main() -> int:
    ranks, first, count = map(int, sys.argv[1:4])
    arguments = sys.argv[4:]
    seed, starts = first, 0
    failed: set[str] = set()
    ended: Counter[str] = Counter()
    while seed < first + count:
        status, told = played(ranks, seed, first + count - seed, arguments)
        starts += 1
        facts = {name: value for each in told for name, value in each.items()}
        failed.update(*(each.get("failures", ()) for each in told))
        ended.update(facts.get("ended", {}))
        if status not in (0, STUCK):
            print(f"status {status}; seeds {seed} ... are not judged")
            return 1
        seed = facts["next"] if status == STUCK else first + count
    print(
        json.dumps({"seeds": count, "failed": sorted(failed), "starts": starts, "ended": dict(sorted(ended.items()))})
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
