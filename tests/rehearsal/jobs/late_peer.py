"""Rank 1 comes late to a collective; rank 0 meanwhile lets go of what the collective uses. late_peer.py HOW."""

import ctypes
import sys
import threading
import time

import torch
import torch.distributed as dist
import tracehook

from common import RANK, filled, start, tell

LATE = 1.5  # seconds
RUNTIME = ctypes.CDLL(None)
THREAD_LOCAL, NON_BLOCKING = 1, 1


def free() -> None:
    """Give the memory of x back, and tell whether all of it went."""
    global x
    del x
    torch.cuda.empty_cache()
    tell(left=torch.cuda.memory_reserved())


def capture(began: threading.Event, end: threading.Event) -> None:
    """Capture a stream, in the mode that lets other threads free memory, until told to end."""
    torch.cuda.set_device(device)
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert RUNTIME.cudaStreamCreateWithFlags(ctypes.byref(stream), NON_BLOCKING) == 0
    assert RUNTIME.cudaStreamBeginCapture(stream, THREAD_LOCAL) == 0
    began.set()
    end.wait()
    tell(capture=RUNTIME.cudaStreamEndCapture(stream, ctypes.byref(graph)))


device = start()
how = sys.argv[1]
if how == "alone" and RANK == 1:
    tracehook.disable()
x = filled(1.0, 32, device)
dist.all_reduce(x)
torch.cuda.synchronize()
if RANK == 1:
    time.sleep(LATE)
work = dist.all_reduce(x, async_op=True)
work.wait()
del work  # it has x too
over = torch.cuda.Event()
over.record()
if RANK == 0:
    tell(ran=not over.query())
    if how == "free":
        free()
    elif how == "capture":
        began, end = threading.Event(), threading.Event()
        thread = threading.Thread(target=capture, args=(began, end))
        thread.start()
        began.wait()
        free()
        end.set()
        thread.join()
if how == "off":
    tracehook.disable()
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
tell(end="reached")
