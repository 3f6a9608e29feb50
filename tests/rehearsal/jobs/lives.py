"""How communicators begin, change and end, through torch; one case a run. Arguments: a case, and a backend.

Each rank puts 2 to the power of its number into a sum, so that a sum says which ranks were in it.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from torch.distributed import distributed_c10d

from common import MB, RANK, WORLD, filled, nccl_calls, raised, start, tell, until

CASE, BACKEND = sys.argv[1:3]
ALL = list(range(WORLD))
SHRINK_ABORT = 1
LIFE = ("InitRankConfig", "Split", "Shrink", "Grow", "Suspend", "Resume", "Revoke", "Abort", "Destroy")

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
board = dist.FileStore(os.environ["TEST_STORE"] + ".board", WORLD)
board.set_timeout(timedelta(seconds=40))
kept: torch.Tensor


def begin(bind: bool = True, **options: Any) -> None:
    """Make the default group; a segment is older than it."""
    global kept
    kept = filled(1, 12, device)
    start(bind=bind, waits=True, backend=BACKEND, **options)


def begin_with_a_group() -> dist.ProcessGroup:
    """Make the default group, and another one of all ranks."""
    begin()
    return dist.new_group(ALL, device_id=device)


def backend_of(group: dist.ProcessGroup | None = None) -> dist.Backend:
    """Return what torch has behind a group."""
    return (group or dist.group.WORLD)._get_backend(device)


def meet(place: str) -> None:
    """Wait for all ranks, without NCCL."""
    board.set(f"{place}/{RANK}", "here")
    board.wait([f"{place}/{rank}" for rank in ALL])


def summed(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    """Return the sum over the ranks of a group."""
    dist.all_reduce(tensor, group=group)
    return float(tensor.cpu()[-1])


def scope(group: dist.ProcessGroup | None) -> list[object]:
    """Return whether a tensor of a scope is symmetric, and its sum."""
    with tracehook.symmetric(group):
        inside = torch.empty(MB, device=device)
    inside.copy_(filled(2**RANK, 4, device))
    return [tracehook.is_symmetric(inside, group), summed(inside, group)]


def memory() -> bool:
    """Whether a new segment comes and goes."""
    fresh = filled(2**RANK, 16, device)
    held = torch.cuda.memory_reserved()
    del fresh
    torch.cuda.empty_cache()
    return bool(held - torch.cuda.memory_reserved() >= 16 * MB)


def works(name: str, group: dist.ProcessGroup | None = None, scopes: bool = True) -> None:
    """Tell what sums are right, whether memory comes and goes, and who registers with the communicators of now."""
    found: dict[str, object] = {"sum": summed(filled(2**RANK, 14, device), group), "memory": memory()}
    if scopes:
        found["symmetric"] = scope(group)
    found["live"] = [row["local"] for row in tracehook.status()["communicators"]]
    tell(**{name: found})


def aborted() -> None:
    """A group is aborted, then all of them."""
    group = begin_with_a_group()
    works("group", group)
    distributed_c10d._abort_process_group(group)
    works("world")
    distributed_c10d._abort_process_group()


def aborted_while_it_hangs() -> None:
    """The backend of a group is aborted while a collective of it waits for a rank that never comes."""
    group = begin_with_a_group()
    works("group", group, scopes=False)
    if RANK == 0:
        dist.all_reduce(kept, group=group, async_op=True)
    backend_of(group).abort()
    works("world")
    dist.destroy_process_group(group)


def aborted_and_asked() -> None:
    """The backend of a group is aborted, and then a scope wants windows of the group."""
    group = begin_with_a_group()
    works("group", group, scopes=False)
    backend_of(group).abort()
    tell(refused=raised(lambda: scope(group)))
    works("world")
    dist.destroy_process_group(group)


def aborted_unbound() -> None:
    """A group that makes its communicator at its first use is used and aborted; then a scope wants windows."""
    begin(bind=False)
    works("world")
    end_and_ask()


def aborted_unbound_without_windows() -> None:
    """The same with a group that only collectives used."""
    begin(bind=False)
    works("world", scopes=False)
    end_and_ask()


def end_and_ask() -> None:
    """Abort the default group, and have a scope want windows of it; ask why its tensor is not symmetric."""
    backend_of().abort()
    inside: list[torch.Tensor] = []

    def ask() -> None:
        with tracehook.symmetric():
            inside.append(torch.empty(MB, device=device))

    tell(refused=raised(ask))
    tell(explained=tracehook.explain(inside[0]).text)
    distributed_c10d._abort_process_group()


def used_on_another_device() -> None:
    """A collective before the device is chosen has made a communicator elsewhere; then a scope on the right one."""
    begin(bind=False)
    torch.cuda.set_device((RANK + 1) % len(ALL))
    dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.set_device(RANK)
    works("world")


def aborted_by_the_watchdog() -> None:
    """A collective waits for a rank that never comes, until its time is up."""
    group = begin_with_a_group()
    works("group", group, scopes=False)
    if RANK == 0:
        group.set_timeout(timedelta(seconds=2))
        dist.all_reduce(kept, group=group, async_op=True)
        until(lambda: nccl_calls("ncclCommAbort") > 0)
    meet("aborted")
    works("world")
    distributed_c10d._abort_process_group()


def shut_down() -> None:
    """A group is shut down twice; torch still knows it until it is destroyed."""
    group = begin_with_a_group()
    works("group", group)
    group.shutdown()
    works("world")
    group.shutdown()
    dist.destroy_process_group(group)
    works("again")


def split() -> None:
    """Two of three ranks are split off, then these again; the older split goes first."""
    begin()
    works("world")
    first = dist.split_group(split_ranks=[[0, 1]])
    if RANK < 2:
        works("first", first)
        second = dist.split_group(first, [[0, 1]])
        dist.destroy_process_group(first)
        works("second", second)
        tell(second_rank=dist.get_rank(second))
    works("all")


def shrunk_default() -> None:
    """The middle rank of three leaves the default group; torch aborts the other group that there was."""
    other = begin_with_a_group()
    works("other", other)
    works("world")
    meet("shrink")
    if RANK == 1:
        distributed_c10d._abort_process_group()
        return
    dist.shrink_group([1])
    works("fewer")
    tell(rank=dist.get_rank())


def shrink_of_a_group(flags: int, hangs: bool) -> None:
    """The last rank of three leaves a group; all three have the default group on."""
    group = begin_with_a_group()
    works("group", group, scopes=not hangs)  # with windows tracehook would refuse a collective that nobody joins
    meet("shrink")
    if RANK == 2:
        group.abort()
    else:
        if hangs:
            dist.all_reduce(kept, group=group, async_op=True)
        fewer = dist.shrink_group([2], group, flags)
        works("fewer", fewer)
    works("world")


def shrunk_while_it_hangs() -> None:
    """A collective waits for the rank that leaves."""
    shrink_of_a_group(SHRINK_ABORT, hangs=True)


def shrunk_with_windows() -> None:
    """The flag that ends the work is given, and the group has windows."""
    shrink_of_a_group(SHRINK_ABORT, hangs=False)


def generation(number: int, members: list[int]) -> None:
    """Make the default group's communicator anew, of these ranks in this order."""
    world = dist.group.WORLD
    board.set(f"{number}/{RANK}", world.get_reconfigure_handle())
    handles = [board.get(f"{number}/{member}").decode() for member in members]
    distributed_c10d._reconfigure(number, handles, timeout=timedelta(seconds=30)).wait()


def reconfigured() -> None:
    """The default group has two ranks, then three, then all three anew, then two others."""
    begin(enable_reconfigure=True)
    tell(before=len(tracehook.status()["communicators"]))
    for number, members in enumerate(([0, 1], ALL, ALL, [1, 2])):
        if RANK in members:
            generation(number, members)
            works(f"generation{number}", scopes=False)
        meet(f"after {number}")


def reconfigured_in_place() -> None:
    """The same ranks have a new communicator, each with the number that it had."""
    begin(enable_reconfigure=True)
    for number in range(3):
        generation(number, ALL)
        works(f"generation{number}")


def reconfigured_with_fewer() -> None:
    """The first rank of three is gone, so the others have other numbers."""
    begin(enable_reconfigure=True)
    generation(0, ALL)
    works("all")
    if RANK:
        generation(1, [1, 2])
        tell(refused=raised(lambda: works("fewer")))
    meet("end")


def reconfigured_with_more() -> None:
    """A third rank comes, and allocates other sizes in a scope than the first two."""
    begin(enable_reconfigure=True)
    if RANK < 2:
        generation(0, [0, 1])
        works("fewer")
    generation(1, ALL)
    tell(refused=raised(lambda: differing(MB if RANK < 2 else 2 * MB)))
    meet("end")


def differing(count: int) -> None:
    """Enter a scope with a segment for so many elements, that no memory of former scopes serves."""
    with tracehook.symmetric():
        torch.empty(20 * count, device=device)


def revoked() -> None:
    """A collective of a group that can be reconfigured waits in vain, so torch revokes it; then it is made anew."""
    begin(enable_reconfigure=True)
    generation(0, ALL)
    works("before", scopes=False)
    if RANK == 0:
        dist.group.WORLD.set_timeout(timedelta(seconds=2))
        dist.all_reduce(kept, async_op=True)
        until(lambda: nccl_calls("ncclCommRevoke") > 0)
        tell(during=len(tracehook.status()["communicators"]), memory=memory())
        tell(refused=raised(lambda: dist.all_reduce(kept)))
        dist.group.WORLD.set_timeout(timedelta(seconds=60))
    meet("revoked")
    generation(1, ALL)
    works("after")


def suspended() -> None:
    """A group rests and goes on, with what was symmetric before."""
    group = begin_with_a_group()
    with tracehook.symmetric(group):
        inside = torch.empty(MB, device=device)
    works("before", group)
    inside.copy_(filled(2**RANK, 4, device))
    torch.cuda.synchronize()
    meet("rest")
    backend_of(group).suspend()
    meet("rested")
    backend_of(group).resume()
    tell(kept=[tracehook.is_symmetric(inside, group), summed(inside, group)])
    works("after", group)
    del inside


def suspended_and_used() -> None:
    """Memory comes and goes while a group rests; another one ends while it rests."""
    begin()
    group, other = (dist.new_group(ALL, device_id=device) for _ in range(2))
    works("before", group, scopes=False)
    meet("rest")
    for one in (group, other):
        backend_of(one).suspend()
    tell(memory=memory())
    later = filled(3, 50, device)
    dist.destroy_process_group(other)
    backend_of(group).resume()
    del later
    works("after", group)


def lazy() -> None:
    """Pairs of ranks have communicators of their own, made by the first send; then a split of the group."""
    begin()
    works("before")
    message = filled(7 if RANK == 0 else 0, 1, device)
    if RANK == 0:
        dist.send(message, 1)
    else:
        dist.recv(message, 0)
    tell(received=message.cpu()[0].item())
    works("pair")
    group = dist.split_group(split_ranks=[ALL])
    works("split", group)
    distributed_c10d._abort_process_group(group)
    backend_of().suspend()
    meet("rested")
    backend_of().resume()
    works("after")


def made_by_first_use() -> None:
    """A group is made without a communicator, which comes with its first collective."""
    begin()
    group = unmade_group()
    tell(before=len(tracehook.status()["communicators"]))
    works("group", group)


def made_by_a_scope() -> None:
    """The first use of such a group is a scope."""
    begin()
    group = unmade_group()
    tell(scope=scope(group))


def unmade_group() -> dist.ProcessGroup:
    """Return a group that has no communicator yet."""
    options = dist.ProcessGroupNCCL.Options()
    options.lazy_init = True
    return dist.new_group(ALL, pg_options=options, device_id=device)


globals()[CASE]()
if dist.is_initialized():
    dist.destroy_process_group()
tell(freed=memory(), left=len(tracehook.status()["communicators"]))
tell(calls={name: count for name in LIFE if (count := nccl_calls(f"ncclComm{name}"))})
# Before 2.29.2 tracehook asks with each window, by a local registration that it takes back, whether it is a true one.
asked = nccl_calls("ncclCommWindowRegister") if tracehook.status()["nccl"] < 22902 else 0
made, undone = (nccl_calls(f"ncclComm{name}") - asked for name in ("Register", "Deregister"))
tell(made=made, undone=undone, end="reached")
