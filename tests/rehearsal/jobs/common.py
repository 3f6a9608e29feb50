"""What the jobs of the tests share."""

import atexit
import ctypes
import json
import os
import sys
import threading
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from tracehook.hook import groups

MB = 1 << 20
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def start(seconds: float = 60, bind: bool = True, waits: bool = False) -> torch.device:
    """Make the default group: as torchrun says, or else through a file, or in this process alone.

    Unless it `waits`, a comparison of the ranks ends already after SYMM_REGISTER_TIMEOUT, instead of the group's own
    time-out: so that a test of ranks that do not come is short, and torch's own watchdog is out of its way.
    """
    if not waits and "SYMM_REGISTER_TIMEOUT" in os.environ:
        groups.timeout = lambda _: float(os.environ["SYMM_REGISTER_TIMEOUT"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    store: dist.Store | None = None
    if "TEST_STORE" in os.environ:
        store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    elif "MASTER_ADDR" not in os.environ:
        store = dist.HashStore()
    dist.init_process_group(
        "nccl",
        store=store,
        rank=RANK if store else -1,
        world_size=WORLD if store else -1,
        timeout=timedelta(seconds=seconds),
        device_id=device if bind else None,
    )
    return device


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def leave() -> NoReturn:
    """End at once, for communicators may hang, but when the threads of tracehook have ended.

    Of a rank that ends in the midst of what it writes, a FileStore makes the others wait for the rest, for ever.
    """
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(0)


def filled(value: float, size_mb: float, device: torch.device | str) -> torch.Tensor:
    """Return a tensor made on the CPU and copied: kernels do nothing on emulated devices."""
    return torch.full((int(size_mb * MB) // 4,), float(value)).to(device)


def calls(name: str = "any") -> int:
    """Return how often this process called the emulated runtime."""
    return _count("emu_call_count", name)


def nccl_calls(name: str = "any") -> int:
    """Return how often this process called the emulated NCCL."""
    return _count("emu_nccl_call_count", name)


def _count(function: str, name: str) -> int:
    ask = getattr(ctypes.CDLL(None), function)
    ask.restype = ctypes.c_uint64
    return int(ask(name.encode()))


def capture_beside(device: torch.device, began: threading.Event, end: threading.Event) -> None:
    """Capture a stream that torch does not know, in the mode that lets other threads free memory, until told to end."""
    thread_local, non_blocking = 1, 1
    runtime = ctypes.CDLL(None)
    torch.cuda.set_device(device)
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    must(runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), non_blocking))
    must(runtime.cudaStreamBeginCapture(stream, thread_local))
    began.set()
    end.wait()
    tell(capture=runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)))


class UniqueId(ctypes.Structure):
    """What ncclUniqueId is."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


def made_by_hand() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Return NCCL and a communicator of this process alone on the current device, made without torch."""
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    unique, communicator = UniqueId(), ctypes.c_void_p()
    must(nccl.ncclGetUniqueId(ctypes.byref(unique)))
    must(nccl.ncclCommInitRank(ctypes.byref(communicator), 1, unique, 0))
    return nccl, communicator


def must(result: int) -> None:
    """End the job if NCCL's answer, or CUDA's, is no success."""
    if result:
        raise SystemExit(f"the library said {result}")
