"""A thread of rank 1 waits at the store for a word that rank 0 says after the first scope."""

import contextlib
import functools

import torch.distributed as dist

from common import RANK, beside
from symmetric_tools import reduced, symmetric
from tcp import connect

_, store = connect()
with beside(functools.partial(store.wait, ["stop"])) if RANK == 1 else contextlib.nullcontext():
    assert reduced(symmetric(RANK + 1.0)) == 3.0
    if RANK == 0:
        store.set("stop", "")
dist.destroy_process_group()
