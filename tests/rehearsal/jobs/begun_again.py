"""One process of a job makes the default group, destroys it, and makes another one; rank 0 has the store each time.

same       at the same port
elsewhere  at another port; in the second life rank 0 opens a scope that rank 1 passes by
"""

import contextlib
import gc
import os
import random
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from tracehook.log import threads

from common import RANK, WORLD, raised, tell, until
from symmetric_tools import reduced, symmetric

MINUTE = timedelta(seconds=60)
PATIENCE = 30.0  # seconds


def free_port() -> int:
    """Return a port that nobody uses, and that no connection gets by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def is_listening(port: int) -> bool:
    """Whether there is a store at that port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def watches() -> int:
    """Return how many threads look for alarms: the one of the first life has no store any more."""
    return sum(thread.name == "tracehook-watchdog" for thread in threads.living())


def begin(port: int) -> None:
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=WORLD, timeout=MINUTE)
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()


def end() -> None:
    """Destroy the default group. All do so together: on devices NCCL waits for the other ranks."""
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()


def port_of(life: int) -> int:
    """Return the port of that life: rank 0 chose it."""
    if RANK == 0:
        files.set(f"port/{life}", str(free_port()))
    return int(files.get(f"port/{life}"))


torch.cuda.set_device(RANK)
files = dist.FileStore(os.environ["TEST_STORE"], WORLD)
first = port_of(1)
begin(first)
tell(sum=reduced(symmetric(RANK + 1.0)))
end()
if RANK == 0:
    tell(still_there=not until(lambda: not is_listening(first), PATIENCE))
    files.set("gone", "")
files.wait(["gone"], MINUTE)
if sys.argv[1] == "same":
    begin(first)
    tell(again=reduced(symmetric(RANK + 1.0)))
    until(lambda: watches() == 1, PATIENCE)
    tell(watches=watches())
else:
    begin(port_of(2))
    if RANK == 0:
        tell(error=raised(symmetric, 1.0))
    dist.all_reduce(torch.ones(1024, device="cuda"))
end()
