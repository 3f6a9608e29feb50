"""``tracehook tune`` as one of several ranks; the first argument says what rank 1 does in the third size.

``twice``: nothing, but the command runs again.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import torch.distributed as dist
from tracehook.commands import main
from tracehook.tuning.arms import Arm
from tracehook.tuning.crew import Crew

from common import start

FAULT = sys.argv.pop(1)
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


Arm.check = check
start()
if FAULT == "twice":
    end, dist.destroy_process_group = dist.destroy_process_group, lambda: None
    with contextlib.suppress(SystemExit):
        main()
    dist.destroy_process_group = end
    _tell = Crew.tell

    def tell_late(crew: Crew, mine: object) -> list[object]:
        """Let the other ranks look first."""
        time.sleep(0.02 * crew.rank)
        return _tell(crew, mine)

    Crew.tell = tell_late
    sys.argv += ["--operations", "all_gather"]
main()
