"""What the jobs of the tests share."""

import atexit
import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from tracehook.hook import groups

MB = 1 << 20
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def start(
    seconds: float = 60, bind: bool = True, waits: bool = False, backend: str = "nccl", **options: Any
) -> torch.device:
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
        backend,
        store=store,
        rank=RANK if store else -1,
        world_size=WORLD if store else -1,
        timeout=timedelta(seconds=seconds),
        device_id=device if bind else None,
        **options,
    )
    return device


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def started() -> None:
    """Tell the launcher that this rank is under way: when all are, it begins to count the seconds of the job."""
    Path(os.environ["TEST_STORE"]).with_name(f"started {RANK}").touch()


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


def passed_on(tensor: torch.Tensor) -> torch.Tensor:
    """Send a tensor to the next rank; return what the one before sent at the same time."""
    received = torch.zeros_like(tensor)
    ahead, behind = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, ahead), dist.P2POp(dist.irecv, received, behind)]
    ):
        work.wait()
    return received


def settle() -> None:
    """Wait for all work of all ranks."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def tensor_at(address: int, count: int, device: str = "cuda") -> torch.Tensor:
    """Return the floats that lie at an address."""
    described = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=described), device=device)


def until(true: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until something is true, and not for ever; return whether it is."""
    deadline = time.monotonic() + seconds
    while not (is_true := true()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return is_true


def raised(act: Callable[..., object], *given: object, **named: object) -> str:
    """Return class and text of what a call raises, or nothing."""
    try:
        act(*given, **named)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


@contextmanager
def beside(*acts: Callable[[], object]) -> Iterator[None]:
    """Run each on a thread of its own meanwhile, and wait for their ends."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def together(*acts: Callable[[], object]) -> None:
    """Run each on a thread of its own, until all have ended."""
    with beside(*acts):
        pass


def forked(act: Callable[[], object]) -> int:
    """Return the exit status of a child that did that: 1 if it raised."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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


@contextmanager
def captured_beside(device: torch.device) -> Iterator[None]:
    """Have another thread capture a stream meanwhile, in the mode that lets other threads free memory; tell its end."""
    began, end = threading.Event(), threading.Event()
    with beside(lambda: _capture(device, began, end)):
        began.wait()
        yield
        end.set()


def _capture(device: torch.device, began: threading.Event, end: threading.Event) -> None:
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


def made_by_hand(simulated: bool = False) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Return NCCL and a communicator of this process alone on the current device, made without torch.

    `simulated`: in a group that ends in an estimate, by which NCCL makes it nevertheless.
    """
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    unique, communicator = UniqueId(), ctypes.c_void_p()
    must(nccl.ncclGetUniqueId(ctypes.byref(unique)))
    if simulated:
        must(nccl.ncclGroupStart())
    must(nccl.ncclCommInitRank(ctypes.byref(communicator), 1, unique, 0))
    if simulated:
        must(nccl.ncclGroupSimulateEnd(None))
    return nccl, communicator


def must(result: int) -> None:
    """End the job if NCCL's answer, or CUDA's, is no success."""
    if result:
        raise SystemExit(f"the library said {result}")
