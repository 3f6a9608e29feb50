"""What ranks do right and wrong with device communicators, without torch; the first argument says which."""

import ctypes
import sys
import time

from raw import RANK, Group, allocate, meet, must, nccl, read, tell

group = Group()


def device_communicator(of: Group = group) -> ctypes.Array[ctypes.c_char]:
    """Create one that must succeed."""
    made = of.make_device_communicator()
    must(of.result)
    return made


def right() -> None:
    """Two live at the same time, and a window ends after both."""
    memory = allocate(4, RANK + 1)
    window = group.window(memory, 4)
    both = [device_communicator() for _ in range(2)]
    must(group.all_reduce(memory, memory))
    dropped = [group.drop_device_communicator(made) for made in both]
    tell(sum=read(memory, 0), dropped=dropped, window=group.drop(window))
    tell(again=group.drop_device_communicator(both[0]))


def one_rank_only() -> None:
    if RANK == 0:
        begun = time.monotonic()
        group.make_device_communicator()
        tell(result=group.result, waited=time.monotonic() - begun)
    meet("end")


def abort_ends_the_wait() -> None:
    if RANK == 0:
        group.abort_soon_after("ncclDevCommCreate")
        group.make_device_communicator()
        tell(result=group.result)
    meet("end")


def window_goes_first() -> None:
    window = group.window(allocate(4), 4)
    made = device_communicator()
    tell(dropped=group.drop(window), destroyed=group.drop_device_communicator(made))


def window_goes_beside() -> None:
    """The device communicator is another communicator's."""
    other = Group("second")
    window = group.window(allocate(4), 4)
    made = device_communicator(other)
    tell(dropped=group.drop(window), destroyed=other.drop_device_communicator(made))


def in_a_group() -> None:
    """A window and a device communicator are asked for in one group, in another order on each rank."""
    memory = allocate(4, RANK + 1)
    must(nccl.ncclGroupStart())
    if RANK == 0:
        window = group.window(memory, 4)
    made = group.make_device_communicator()
    early = group.drop_device_communicator(made)
    if RANK == 1:
        window = group.window(memory, 4)
    tell(early=early, ended=nccl.ncclGroupEnd(), destroyed=group.drop_device_communicator(made))
    must(group.drop(window))


def non_blocking() -> None:
    mine = Group("second", blocking=False)
    made = mine.make_device_communicator()
    tell(early=mine.result, error=mine.ready(), destroyed=mine.drop_device_communicator(made))
    mine.abort()


def left_to_the_end() -> None:
    """NCCL ends both with the communicator."""
    group.window(allocate(4), 4)
    device_communicator()
    must(nccl.ncclCommFinalize(group.comm))
    group.destroy()
    tell(ended=True)


def refused() -> None:
    group.make_device_communicator()
    tell(result=group.result)


globals()[sys.argv[1]]()
