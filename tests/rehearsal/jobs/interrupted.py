"""A signal's handler raises on rank 1 while it waits for rank 0 in a call: interrupted.py CALL SIGNAL."""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import tracehook

from common import RANK, WORLD, start, tell

MB = 1 << 18  # elements
CALL, SIGNAL = sys.argv[1], signal.Signals[sys.argv[2]]
PAUSE = 1.5  # seconds: rank 1 has come to the call by then


class Alarm(Exception):
    """Raised by the handler of SIGALRM."""


def rings(*_: object) -> None:
    """Raise as the handlers of programs do that limit a step's time."""
    raise Alarm("rang")


def place() -> None:
    """Sum a tensor of a scope: the ranks compare where it lies."""
    dist.all_reduce(tensor)


def registered() -> None:
    """Gather what would run on registered memory: the ranks agree on that before."""
    dist.all_gather_into_tensor(whole, part)


def scope() -> None:
    """End a scope with memory that needs a window."""
    with tracehook.symmetric():
        torch.empty(64 * MB, device=device)


signal.signal(signal.SIGALRM, rings)
device = start()
if CALL == "place":
    with tracehook.symmetric():
        tensor = torch.ones(MB, device=device)
part = torch.ones(64 * MB, device=device)
whole = torch.empty(WORLD * 64 * MB, device=device)
store = dist.distributed_c10d._get_default_store()
dist.barrier(device_ids=[device.index])
caught = ""
if RANK == 1:
    threading.Timer(PAUSE, os.kill, (os.getpid(), SIGNAL)).start()
    try:
        {"place": place, "registered": registered, "scope": scope}[CALL]()
        time.sleep(PAUSE)
    except BaseException as problem:
        caught = type(problem).__name__
    tell(caught=caught)
    store.set("caught", "")
else:
    store.wait(["caught"])
dist.distributed_c10d._abort_process_group()
