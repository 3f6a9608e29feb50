"""Collectives with settings for the call alone, which NCCL has since 2.31. Argument: the case."""

import ctypes
import sys
import time
from collections.abc import Callable

import torch  # first: what is looked up in NCCL before it is not followed
import tracehook

import raw
from common import RANK, nccl_calls, start, tell

CASE = sys.argv[1]
UNSET = -(1 << 31)
nccl = raw.nccl
nccl.ncclGetLastError.restype = ctypes.c_char_p


class Settings(ctypes.Structure):
    """What ncclCollConfig_t is in 2.32, as its initializer makes it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("ext", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize")),
        ("algSelection", ctypes.c_char_p),
        ("forceAlgSelection", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("userProfilerTag", ctypes.c_uint64),
        ("launchCompletionEvent", ctypes.c_void_p),
    )

    def __init__(self, **given: object) -> None:
        numbers = dict.fromkeys(("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize", "CTAPolicy"), UNSET)
        fixed = {"size": ctypes.sizeof(Settings), "magic": 0xCAFEBEEF, "version": 23203, "forceAlgSelection": 1}
        super().__init__(**(numbers | fixed | given))


def all_reduce(memory: int, settings: Settings | None) -> int:
    """Sum 1,024 floats in place, with these settings."""
    place, count = ctypes.c_void_p(memory), ctypes.c_size_t(1024)
    given = ctypes.byref(settings) if settings is not None else None
    return int(nccl.ncclAllReduceConfig(place, place, count, raw.FLOAT, raw.SUM, group.comm, None, given))


def broadcast(memory: int, settings: Settings) -> int:
    """Send rank 0's 1,024 floats to all, with these settings."""
    place, count = ctypes.c_void_p(memory), ctypes.c_size_t(1024)
    return int(nccl.ncclBroadcastConfig(place, place, count, raw.FLOAT, 0, group.comm, None, ctypes.byref(settings)))


def tried(call: Callable[[int, Settings], int], **settings: object) -> None:
    """Make one call, with settings of this rank's; tell how that went, and whether NCCL was called."""
    names = ("ncclAllReduceConfig", "ncclBroadcastConfig")
    before = sum(map(nccl_calls, names))
    result = call(raw.allocate(4, RANK + 1), Settings(**settings))
    said = nccl.ncclGetLastError(group.comm)
    tell(result=result, said=said.decode() if said else "", called=sum(map(nccl_calls, names)) - before)


def alike() -> None:
    """All ranks use two settings, one of them often, and each has profilers' tags of its own; some calls have none."""
    memory = raw.allocate(4, RANK + 1)
    for tag in range(3):
        raw.must(all_reduce(memory, Settings(maxCTAs=4, userProfilerTag=10 * RANK + tag)))
    raw.must(all_reduce(memory, None))
    raw.must(broadcast(memory, Settings(algSelection=b"ring")))
    raw.must(broadcast(memory, Settings(algSelection=b"ring")))
    raw.must(group.all_reduce(memory, memory))
    tell(value=raw.read(memory, 0)[0])


def in_windows() -> None:
    """The same settings and other ones, on one window: each is compared once, and what is known stays known."""
    memory = raw.allocate(4, RANK + 1)
    window = group.window(memory, 4)
    raw.must(group.result)
    for number in (4, 4, 8, 4):
        raw.must(all_reduce(memory, Settings(maxCTAs=number)))
    raw.must(all_reduce(memory, None))
    raw.must(group.all_reduce(memory, memory))
    tell(value=raw.read(memory, 0)[0])
    raw.meet("used")
    raw.must(group.drop(window))


def numbers() -> None:
    """The ranks allow other numbers of blocks."""
    tried(all_reduce, minCTAs=1, maxCTAs=4 + 4 * RANK)


def algorithms() -> None:
    """One rank chooses an algorithm."""
    tried(all_reduce, **({"algSelection": b"ring"} if RANK == 0 else {}))


def events() -> None:
    """One rank wants to hear of the launch."""
    event = ctypes.c_void_p()
    raw.must(raw.cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2))
    tried(all_reduce, **({"launchCompletionEvent": event} if RANK == 1 else {}))


def old_layout() -> None:
    """One rank has the structure of 2.31, which ends before the event: what lies behind it means nothing."""
    short = Settings.launchCompletionEvent.offset
    tried(all_reduce, maxCTAs=4, **({"size": short, "launchCompletionEvent": 1} if RANK == 1 else {}))


def spoilt() -> None:
    """Nobody has used the initializer: NCCL says so on each rank by itself."""
    tried(all_reduce, magic=0)


def one_without() -> None:
    """One rank makes the call without settings, which nobody compares."""
    memory = raw.allocate(4, RANK + 1)
    result = all_reduce(memory, Settings(maxCTAs=4) if RANK == 0 else None)
    said = nccl.ncclGetLastError(group.comm)
    tell(result=result, said=said.decode() if said else "", called=nccl_calls("ncclAllReduceConfig"))


def swapped() -> None:
    """Both settings are known, and one rank uses the other one: only a comparison in the background finds that."""
    memory = raw.allocate(4, RANK + 1)
    for number in (4, 8):
        raw.must(all_reduce(memory, Settings(maxCTAs=number)))
    result = all_reduce(memory, Settings(maxCTAs=8 if RANK == 1 else 4))
    deadline = time.monotonic() + 60
    while not result and time.monotonic() < deadline:
        time.sleep(0.02)
        result = all_reduce(memory, Settings(maxCTAs=4))
    tell(result=result, said=nccl.ncclGetLastError(group.comm).decode())


torch.cuda.set_device(start())
assert tracehook.status()["state"] == "on"
group = raw.Group()
globals()[CASE]()
raw.meet("done")
nccl.ncclCommAbort(group.comm)
