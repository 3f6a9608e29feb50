"""Windows while a device communicator of their communicator lives. Argument: the case."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist
import tracehook
from tracehook import _core

from common import nccl_calls, start, tell
from raw import RANK, Group, allocate, must, nccl
from symmetric_tools import SIZE, empty, meet, symmetric, works

DEREGISTER = "ncclCommWindowDeregister"


class OfTorch(Group):
    """The communicator of the default group."""

    def __init__(self) -> None:
        assert works()  # torch has made it
        self.comm = ctypes.c_void_p(dist.group.WORLD._get_backend(device)._comm_ptr())

    def abort(self) -> None:
        """Have torch do it."""
        dist.group.WORLD.abort()


def facts(group: Group) -> dict[str, int]:
    """Return what status() says of windows and of this communicator."""
    status = tracehook.status()
    (row,) = [row for row in status["communicators"] if row["pointer"] == group.comm.value]
    return {"live": row["device_communicators"], "pinned": sum(each["pinned"] for each in status["windows"])}


def trimmed() -> None:
    """Unused memory stays until the device communicator is destroyed."""
    group = OfTorch()
    kept, unused = symmetric(1), symmetric(1)
    made = group.make_device_communicator()
    must(group.result)
    del unused
    tell(held=facts(group), given_back=tracehook.trim(), explained=tracehook.explain(kept).text)
    assert works()
    must(group.drop_device_communicator(made))
    tell(free=facts(group), later=tracehook.trim(), explained_later=tracehook.explain(kept).text)
    dist.destroy_process_group()


def ended(how: str = "destroy") -> None:
    """The group ends while a device communicator lives; then no window counts, and no call reaches NCCL for it."""
    group = OfTorch()
    kept = symmetric(1)
    group.make_device_communicator()
    must(group.result)
    meet()
    if how == "destroy":
        dist.destroy_process_group()
    else:
        dist.group.WORLD.abort()
    before = nccl_calls(DEREGISTER)
    tell(windows=[row.windows for row in _core.pool_segments()], live=len(tracehook.status()["communicators"]))
    del kept
    torch.cuda.empty_cache()
    tell(late=nccl_calls(DEREGISTER) - before)


def aborted() -> None:
    ended("abort")


def alone() -> None:
    """One rank creates alone; an abort by another thread ends its wait, and that thread is not held up."""
    group = OfTorch()
    if RANK == 0:
        group.abort_soon_after("ncclDevCommCreate")
        begun = time.monotonic()
        group.make_device_communicator()
        tell(result=group.result, seconds=time.monotonic() - begun)
    meet()
    if RANK == 1:
        dist.group.WORLD.abort()


def grouped() -> None:
    """NCCL makes one at the end of a group of calls, on a communicator of the program's own."""
    group = Group("own")
    must(nccl.ncclGroupStart())
    made = group.make_device_communicator()
    must(nccl.ncclGroupEnd())
    tell(held=facts(group))
    must(group.drop_device_communicator(made))
    group.destroy()
    dist.destroy_process_group()


def non_blocking() -> None:
    """NCCL makes one in the background."""
    group = Group("own", blocking=False)
    made = group.make_device_communicator()
    tell(early=group.result, error=group.ready(), held=facts(group))
    must(group.drop_device_communicator(made))
    group.abort()
    dist.destroy_process_group()


def dropped() -> None:
    """The program ends a window of its own first, then the device communicator, and then another window."""
    group = Group("own")
    windows = [group.window(allocate(4), 4) for _ in range(2)]
    made = group.make_device_communicator()
    must(group.drop(windows[0]))
    must(group.drop_device_communicator(made))
    must(group.drop(windows[1]))
    group.destroy()
    dist.destroy_process_group()


device = start()
assert empty(SIZE).is_cuda
globals()[sys.argv[1]]()
