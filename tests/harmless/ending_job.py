"""Plays one random correct program to its end, which is random, too: ending_job.py SEED [plain]. One process a rank.

With `plain` nothing of tracehook is called.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from common import RANK, WORLD, tell
from endings import Ending, draw

import tracehook

SEED, PLAIN = int(sys.argv[1]), "plain" in sys.argv
ending: Ending = draw(SEED)
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
KEPT: list[Any] = []
MB = 1 << 18  # elements


def scope(group: Any = None) -> contextlib.AbstractContextManager[Any]:
    """Return a scope, or what stands for it."""
    return contextlib.nullcontext() if PLAIN else tracehook.symmetric(group)


def begin(name: str) -> None:
    """Make the default group."""
    store = dist.FileStore(f"{os.environ['TEST_STORE']} {name}", WORLD)
    bound = device if ending.is_bound else None
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, device_id=bound)


def summed(group: Any = None, size: int = MB) -> torch.Tensor:
    """Sum a tensor of a scope."""
    with scope(group):
        tensor = torch.empty(size, device=device)
    tensor.fill_(RANK + 1)
    dist.all_reduce(tensor, group=group)
    tell(sum=float(tensor[-1].item()))
    return tensor


class Steps:
    """What a program may do before it ends."""

    def sums(self) -> None:
        """Use a scope."""
        summed()

    def keeps(self) -> None:
        """Leave a tensor of a scope to the end of the interpreter."""
        KEPT.append(summed())

    def cycle(self) -> None:
        """Leave one to the last collection of garbage."""
        ring: list[Any] = [summed()]
        ring.append(ring)

    def other_group(self) -> None:
        """Use one more group, and leave it."""
        KEPT.append(dist.new_group())
        summed(KEPT[-1])

    def passing_group(self) -> None:
        """Destroy a group whose tensor is still there."""
        group = dist.new_group()
        KEPT.append(summed(group))
        dist.destroy_process_group(group)

    def gathers(self) -> None:
        """Gather in ordinary memory."""
        whole = torch.empty(32 * MB * WORLD, device=device)
        dist.all_gather_into_tensor(whole, torch.full((32 * MB,), float(RANK), device=device))
        tell(gathered=float(whole[-1].item()))

    def flies(self) -> None:
        """Do not wait for a collective."""
        with scope():
            tensor = torch.ones(MB, device=device)
        KEPT.append(dist.all_reduce(tensor, async_op=True))

    def graph(self) -> None:
        """Keep a graph that sums a tensor of a scope."""
        graph = torch.cuda.CUDAGraph()
        tensor = summed()
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
        graph.replay()
        torch.cuda.synchronize()
        KEPT.append(tensor)
        if ending.destroys or "again" in ending.steps or "destroys_late" in ending.steps:
            graph.reset()  # NCCL waits for it
        else:
            KEPT.append(graph)

    def generator(self) -> None:
        """Leave a generator in the midst of a scope."""

        def work() -> Iterator[torch.Tensor]:
            with scope():
                yield torch.empty(MB, device=device)

        KEPT.append(work())
        next(KEPT[-1])

    def finalizer(self) -> None:
        """Leave an object that works when it goes."""

        class Late:
            def __del__(self) -> None:
                torch.empty(MB, device=device)
                gc.collect()

        KEPT.append(Late())

    def exit_function(self) -> None:
        """Work in an exit function."""

        def late() -> None:
            if dist.is_initialized():
                summed()
            torch.cuda.synchronize()
            tell(late=True)

        atexit.register(late)

    def destroys_late(self) -> None:
        """Destroy the groups in an exit function."""
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())

    def daemon(self) -> None:
        """Leave a thread that allocates for ever."""

        def work() -> None:
            while True:
                tensor = torch.empty(8 * MB, device=device)
                del tensor
                torch.cuda.empty_cache()
                time.sleep(0.001)

        threading.Thread(target=work, daemon=True).start()

    def daemon_in_scopes(self) -> None:
        """Leave a thread that opens scopes of a group of its own, until that is gone; it uses no tensor."""
        group = dist.new_group()
        summed(group)  # or it may end on one rank while the other begins with this group

        def work() -> None:
            with contextlib.suppress(RuntimeError):
                while True:
                    with scope(group):
                        torch.empty(MB, device=device)
                    time.sleep(0.001)

        threading.Thread(target=work, daemon=True).start()

    def thread(self) -> None:
        """Leave a thread that ends after the main thread."""

        def work() -> None:
            time.sleep(0.3)
            torch.empty(8 * MB, device=device)

        threading.Thread(target=work).start()

    def again(self) -> None:
        """Begin again."""
        dist.destroy_process_group()
        KEPT.clear()
        begin("again")
        summed()

    def child(self) -> None:
        """Fork a child that ends in a way of its own."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os._exit(5)
        tell(child=os.waitpid(pid, 0)[1])

    def switches(self) -> None:
        """Change who handles SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))


def by_signal(number: int) -> None:
    """End by a signal that comes from outside."""
    os.kill(os.getpid(), number)
    time.sleep(1)


def from_a_thread() -> None:
    """End the process on another thread."""
    threading.Thread(target=os._exit, args=(3,)).start()
    time.sleep(5)


def finish() -> None:
    """End."""
    if ending.destroys and dist.is_initialized():
        dist.destroy_process_group()
    inside = scope() if ending.in_scope and dist.is_initialized() else contextlib.nullcontext()
    ways: dict[str, Callable[[], object]] = {
        "return": lambda: None,
        "exit": lambda: sys.exit(0),
        "status": lambda: sys.exit(7),
        "text": lambda: sys.exit("the end"),
        "raise": lambda: [][1],
        "os._exit": lambda: os._exit(4),
        "SIGTERM": lambda: signal.raise_signal(signal.SIGTERM),
        "SIGINT": lambda: by_signal(signal.SIGINT),
        "SIGKILL": lambda: by_signal(signal.SIGKILL),
        "abort": os.abort,
        "thread": from_a_thread,
        "exec": lambda: os.execv("/bin/true", ["true"]),
    }
    with inside:
        ways[ending.way]()


def main() -> None:
    """Play all."""
    torch.cuda.set_device(device)
    begin("first")
    summed()
    steps = Steps()
    for name in ending.steps:
        step: Callable[[], None] = getattr(steps, name)
        step()
    torch.cuda.synchronize()
    tell(steps=ending.steps)
    finish()


if __name__ == "__main__":
    main()
