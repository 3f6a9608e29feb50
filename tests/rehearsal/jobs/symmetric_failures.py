"""Windows that NCCL refuses, going on without windows, the limit of the pools and their policies; one case a run."""

import sys
import threading

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, filled, leave, start, tell
from symmetric_tools import (
    SIZE,
    attempt,
    caught,
    empty,
    in_vain,
    in_vain_once_agreed,
    meet,
    reduced,
    refill,
    symmetric,
    windows,
    works,
)


def failing() -> None:
    """NCCL refuses a window, by a fault that is injected."""
    attempt(lambda: symmetric(1))
    tell(windows=windows(), refused=[row["refused"] for row in tracehook.status()["windows"]])


def failing_alone() -> None:
    """The same on one rank, so that the others hang in NCCL."""
    in_vain_once_agreed()
    failing()


def failing_group() -> None:
    """The same on a group of its own, so that the default group survives."""
    group = dist.new_group(list(range(WORLD)), device_id=device)
    in_vain_once_agreed(group)
    attempt(lambda: symmetric(1, group=group))
    tell(windows=windows())


def no_support() -> None:
    """NCCL makes no windows on these communicators: scopes go on without."""
    tensor = symmetric(RANK + 1)
    again = symmetric(RANK + 1)
    tell(reasons=[tracehook.explain(one).reason for one in (tensor, again)], windows=windows())
    tell(symmetric=tracehook.is_symmetric(tensor), synced=tracehook.sync(), sums=[reduced(tensor), reduced(again)])
    with tracehook.symmetric(dist.new_group(list(range(WORLD)))):
        empty()
    tell(refused=[row["refused"] for row in tracehook.status()["windows"]])


def third_window() -> None:
    """The third window fails on all ranks: none of its scope is used, those of earlier scopes are."""
    early = symmetric(RANK + 1)
    made: list[torch.Tensor] = []

    def enter() -> None:
        with tracehook.symmetric():
            made.extend(empty() for _ in range(3))

    attempt(enter)
    tell(windows=windows(), reasons=[tracehook.explain(one).reason for one in (early, *made)])
    tell(sums=[reduced(refill(one, RANK + 1)) for one in (early, *made)])
    symmetric(1)
    tell(later=windows())


def behind() -> None:
    """Another thread makes a call before the scope ends on rank 0, and after the scope was refused on rank 1."""
    tensor, may_call = filled(1, 1, device), threading.Event()
    calls: list[dist.Work | None] = []

    def call() -> None:
        may_call.wait()
        calls.append(dist.all_reduce(tensor, async_op=True))

    dist.all_reduce(tensor)
    thread = threading.Thread(target=call)
    thread.start()
    if RANK == 0:
        may_call.set()
        thread.join()
    meet()
    attempt(lambda: symmetric(1))
    may_call.set()
    thread.join()
    for work in calls:
        assert work is not None
        work.wait()
    tell(windows=windows(), sum=tensor.cpu()[0].item())


def warn_sizes() -> None:
    """The ranks want windows of other sizes; all go on without."""
    made: list[torch.Tensor] = []
    attempt(lambda: made.append(symmetric(RANK + 1, SIZE * (RANK + 1))))
    tensor = made[0][: SIZE * MB // 4]
    tell(windows=windows(), reason=tracehook.explain(tensor).reason, sum=reduced(tensor))


def warn_missing() -> None:
    """One rank comes when the others have given up; all go on without."""
    made: list[torch.Tensor] = []
    if RANK == 0:
        with in_vain():
            attempt(lambda: made.append(symmetric(RANK + 1)))
    meet()
    if RANK != 0:
        attempt(lambda: made.append(symmetric(RANK + 1)))
    tell(windows=windows(), reason=tracehook.explain(made[0]).reason, sum=reduced(made[0]))
    later = symmetric(RANK + 1, 2 * SIZE)
    tell(later=tracehook.is_symmetric(later))


def limit() -> None:
    """The pools may hold 100 MiB: a third tensor is refused, a smaller one is not, and freed memory serves again."""
    group = dist.new_group(list(range(WORLD)), device_id=device)
    kept = [symmetric(RANK + 1), symmetric(RANK + 1, group=group)]
    bases = []
    texts = []
    try:
        symmetric(0)
        with tracehook.symmetric():
            kept.append(empty(2 * SIZE))
    except tracehook.PoolLimitError as problem:
        bases = [base.__name__ for base in type(problem).__mro__]
        texts = [str(problem), type(problem.__cause__).__name__]
    tell(bases=bases, texts=texts, windows=windows())
    tell(held=sum(row["bytes"] for row in tracehook.status()["pools"]))
    tell(sums=[reduced(kept[0]), reduced(kept[1], group)], outside=reduced(filled(RANK + 1, 2 * SIZE, device)))
    kept.clear()
    tell(given_back=tracehook.trim() + tracehook.trim(group))
    tell(after=caught(lambda: reduced(symmetric(RANK + 1, 2 * SIZE))))


def limit_caught_inside() -> None:
    """The program itself catches the refusal inside the scope, and takes less."""
    sizes = []
    with tracehook.symmetric():
        for size in (3 * SIZE + 8, SIZE):
            try:
                tensor = empty(size)
                sizes.append(size)
            except torch.OutOfMemoryError:
                sizes.append(0)
    tell(sizes=sizes, symmetric=tracehook.is_symmetric(tensor), sum=reduced(refill(tensor, RANK + 1)))


def policy() -> None:
    """Two groups over the pools that the policy chooses; a hint of the operation."""
    group = dist.new_group(list(range(WORLD)), device_id=device)
    small, other = symmetric(RANK + 1, 1), symmetric(RANK + 1, 1, group)
    with tracehook.symmetric(group, operation="broadcast"):
        hinted = empty(1)
    with tracehook.symmetric([group, dist.group.WORLD]):
        both = empty(1)
    refill(hinted, RANK + 1)
    refill(both, RANK + 1)
    tell(
        pools=sorted({row["pool"] for row in tracehook.status()["pools"]}),
        symmetric=[tracehook.is_symmetric(small), tracehook.is_symmetric(other, group)],
        hinted=tracehook.is_symmetric(hinted, group),
        both=[tracehook.is_symmetric(both), tracehook.is_symmetric(both, group)],
        sums=[reduced(small), reduced(other, group), reduced(hinted, group), reduced(both)],
        group=group.group_name,
    )


device = start(seconds=60)
globals()[sys.argv[1]]()
if "works" in sys.argv[2:]:
    tell(right=works())
if "leave" in sys.argv[2:]:
    meet()
    leave()
torch.cuda.synchronize()
dist.destroy_process_group()
