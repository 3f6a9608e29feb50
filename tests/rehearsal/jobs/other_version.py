"""Rank 1 runs something else than the others. Arguments: what differs, and how rank 0 ends: ``well`` or ``badly``."""

import importlib
import os
import platform
import sys
import time
from pathlib import Path

from tracehook.hook import known_bugs

WHAT, END = sys.argv[1:]
RANK, WORLD, OWN = os.environ["RANK"], int(os.environ["WORLD_SIZE"]), Path(__file__)
IS_OTHER = RANK == "1"

if WHAT == "driver":
    known_bugs._driver = lambda: "580.65.6" if IS_OTHER else "570.1.2"
if WHAT == "python" and IS_OTHER:
    platform.python_version = lambda: "3.10.1"
if WHAT == "text" and IS_OTHER:
    while len(list(OWN.parent.glob("begun *"))) < WORLD - 1:
        time.sleep(0.01)
    OWN.write_text(OWN.read_text() + "# A newer text.\n")

torch = importlib.import_module("torch")  # the log begins here
if WHAT == "text":
    OWN.with_name(f"begun {RANK}").touch()

dist, common = importlib.import_module("torch.distributed"), importlib.import_module("common")
dist.all_reduce(torch.ones(4, device=common.start()))
torch.cuda.synchronize()
assert END == "well" or RANK != "0", "rank 0 fails"
dist.destroy_process_group()
