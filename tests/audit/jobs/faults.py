"""Jobs that do something wrong, or have it done to them; the first argument says which."""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

if sys.argv[1] == "other_settings" and os.environ["RANK"] == "1":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"  # before torch reads it

from tracehook.hook import known_bugs

if sys.argv[1] == "other_driver":
    known_bugs._driver = lambda: "580.65.6" if os.environ["RANK"] == "1" else "570.1.2"

import torch
import torch.distributed as dist
import tracehook
import tracehook._core
import tracehook.hook.service
from common import RANK, filled, start
from symmetric_tools import caught, meet


def groups_in_another_order() -> None:
    """Rank 1 makes two groups in the opposite order: NCCL splits the parent by the ranks that each one named."""
    device = start()
    lists = [[0, 1], [0, 1, 2]]
    groups = [dist.new_group(ranks, device_id=device) for ranks in (reversed(lists) if RANK == 1 else lists)]
    time.sleep(3)  # the log finds their names
    dist.all_reduce(filled(1, 1, device), group=groups[RANK != 1])
    torch.cuda.synchronize()
    dist.destroy_process_group()


def killed() -> None:
    """Rank 1 is killed without warning, right after an allocation; rank 0 misses it, aborts, and ends."""
    device = start()
    dist.all_reduce(filled(1, 24, device))
    torch.cuda.synchronize()
    if RANK == 1:
        last = torch.empty(48 << 20, dtype=torch.uint8, device=device)
        os.kill(os.getpid(), signal.SIGKILL)
        del last
    caught(lambda: meet(seconds=2))
    dist.group.WORLD.abort()


def not_destroyed() -> None:
    """The process ends with its group."""
    dist.all_reduce(filled(1, 24, start()))
    torch.cuda.synchronize()


def raises() -> None:
    """Rank 2 raises; the others do not hear of it, abort, and end."""
    dist.all_reduce(filled(1, 24, start()))
    torch.cuda.synchronize()
    if RANK == 2:
        raise RuntimeError("user bug on rank 2\nwith more lines")
    dist.group.WORLD.abort()


def raises_in_thread() -> None:
    """A thread of rank 1 ends by an exception, and the program goes on."""
    dist.all_reduce(filled(1, 24, start()))
    if RANK == 1:
        thread = threading.Thread(target=int, args=("no number",), name="loader")
        thread.start()
        thread.join()
    dist.destroy_process_group()


def interrupted() -> None:
    """Ctrl-C on all ranks."""
    dist.all_reduce(filled(1, 24, start()))
    torch.cuda.synchronize()
    signal.raise_signal(signal.SIGINT)


def exits() -> None:
    """Rank 1 ends itself, in the way that the second argument names."""
    dist.all_reduce(filled(1, 24, start()))
    torch.cuda.synchronize()
    if RANK == 1:
        ends: dict[str, Callable[[int], NoReturn]] = {"sys.exit": sys.exit, "os._exit": os._exit}
        ends[sys.argv[2]](3)
    dist.group.WORLD.abort()


def switched_off() -> None:
    """Registration is off for a while, in which the job works on."""
    device = start()
    dist.all_reduce(filled(1, 24, device))
    tracehook.disable()
    tensor = filled(1, 48, device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    tracehook.enable()
    dist.all_reduce(tensor)
    dist.destroy_process_group()


def left_out() -> None:
    """The last of three ranks has no hook."""
    if RANK != 2:
        tracehook.enable()
    dist.all_reduce(filled(1, 24, start()))
    dist.destroy_process_group()


def burst() -> None:
    """More events at once than the ring holds, which is made a small one for that."""
    tracehook.log.ring_place.MOST_EVENTS = 24  # type: ignore[attr-defined]  # of that module alone
    tracehook.enable()
    device = start()
    dist.all_reduce(filled(1, 1, device))
    time.sleep(0.5)  # the log has caught up
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # its thread asks in vain for the interpreter
    parts = [torch.empty(24 << 20, dtype=torch.uint8, device=device) for _ in range(24 if RANK == 1 else 2)]
    sys.setswitchinterval(interval)
    time.sleep(0.5)
    dist.all_reduce(parts[0])
    dist.destroy_process_group()


def other_settings() -> None:
    """One rank of three has other settings of the allocator."""
    dist.all_reduce(filled(1, 24, start()))
    dist.destroy_process_group()


def full_disk() -> None:
    """For a moment the log of rank 1 cannot grow. The job goes on, and ends in order."""
    device = start()
    dist.all_reduce(filled(1, 24, device))
    torch.cuda.synchronize()
    if RANK == 1:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
        tracehook._core.push("hook.enable", segments=0, bytes=0)
        tracehook.status()
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    dist.all_reduce(filled(2, 24, device))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def clock() -> None:
    """Somebody sets the clock of rank 1 ahead by an hour, and rank 1 ends with a status of its own."""
    device = start()
    dist.all_reduce(filled(1, 24, device))
    torch.cuda.synchronize()
    now = time.time_ns
    if RANK == 1:
        time.time_ns = lambda: now() + 3600 * 1_000_000_000
    time.sleep(1)
    dist.destroy_process_group()
    if RANK == 1:
        sys.exit(3)


def other_driver() -> None:
    """The host of rank 1 has another driver, and rank 2 raises."""
    raises()


globals()[sys.argv[1]]()
