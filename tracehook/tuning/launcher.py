"""torchrun without its stack trace: a rank that failed has said why in one line. Ran with ``python -m``."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except (SignalException, ChildFailedError):
        sys.exit(1)
