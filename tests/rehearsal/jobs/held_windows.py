"""Windows while a device communicator of their communicator lives. Argument: the case."""

import ctypes
import sys

import torch.distributed as dist
import tracehook

from common import start, tell
from raw import Group, allocate, must, nccl
from symmetric_tools import SIZE, empty, symmetric, works


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
