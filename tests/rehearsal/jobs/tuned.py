"""``tracehook tune`` as one of several ranks; the first argument says what rank 1 does in the third size.

``twice``: nothing, but the command runs again. ``counts``: nothing, but one size stays undecided, and each rank prints
how often it measured a size.
"""

import atexit
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from tracehook.commands import main
from tracehook.tuning import sweep
from tracehook.tuning.arms import Arm
from tracehook.tuning.tuner_run import TunerRun

from common import start

FAULT = sys.argv.pop(1)
UNDECIDED = 1024  # bytes
_check, _count = Arm.check, iter(range(1_000_000))


def check(arm: Arm, operation: str, wait: Callable[[], None]) -> str:
    """Do what the fault says instead."""
    if os.environ["RANK"] == "1" and next(_count) == 4:
        match FAULT:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raises":
                raise ValueError("a bug in rank 1")
            case "wrong":
                _check(arm, operation, wait)
                return "wrong results: part 0 has 1 to 2, expected 2"
    return _check(arm, operation, wait)


Arm.check = check  # type: ignore[method-assign,assignment]  # mypy takes `arm` for a name that callers may give
start()
if FAULT == "counts":
    runners: Any = sweep._Runner
    _measure, _is_decided = runners.measure, runners.is_decided
    measured: Counter[int] = Counter()

    def measure(runner: Any, operation: str, graph: bool, nbytes: int, times: int) -> None:
        """Count."""
        measured[nbytes] += 1
        _measure(runner, operation, graph, nbytes, times)

    def is_decided(runner: Any, graph: bool, operation: str, nbytes: int) -> bool:
        """Leave the others to the noise."""
        return nbytes != UNDECIDED and bool(_is_decided(runner, graph, operation, nbytes))

    runners.measure, runners.is_decided = measure, is_decided
    atexit.register(lambda: print(f"measured {dict(measured)}", flush=True))
if FAULT == "twice":
    end, dist.destroy_process_group = dist.destroy_process_group, lambda: None
    with contextlib.suppress(SystemExit):
        main()
    dist.destroy_process_group = end
    _tell = TunerRun.tell

    def tell_late(run: TunerRun, mine: object) -> list[object]:
        """Let the other ranks look first."""
        time.sleep(0.02 * run.rank)
        return _tell(run, mine)

    TunerRun.tell = tell_late  # type: ignore[method-assign,assignment]  # likewise
    sys.argv += ["--operations", "all_gather"]
main()
