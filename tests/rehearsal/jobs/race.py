"""Threads that allocate and free while others run collectives, and make, destroy and abort communicators.

race.py SECONDS ROUNDS [MODE]: for so long, and until each thread has made so many rounds.
"""

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import tracehook

from common import MB, filled, start, tell

LONGEST = 60.0  # seconds
begin = time.monotonic()
seconds, enough = float(sys.argv[1]), int(sys.argv[2])
rounds: dict[str, int] = {}
failures: list[str] = []
over = threading.Event()
making = threading.Lock()  # torch's table of groups has no lock of its own


def loop(name: str, *acts: Callable[[], object]) -> threading.Thread:
    def body() -> None:
        rounds[name] = 0
        try:
            while not over.is_set():
                for act in acts:
                    act()
                rounds[name] += 1
        except Exception as problem:
            failures.append(f"{name}: {type(problem).__name__}: {problem}")
            over.set()

    return threading.Thread(target=body, name=name)


def allocate(device: int) -> Callable[[], None]:
    chance = random.Random(device)

    def act() -> None:
        parts = [
            torch.empty(chance.choice((2, 21, 24, 48)) * MB, dtype=torch.uint8, device=f"cuda:{device}")
            for _ in range(3)
        ]
        del parts
        if chance.random() < 0.5:
            torch.cuda.empty_cache()
        time.sleep(0.001)  # leaves the log time to keep up

    return act


def reduce(device: int) -> Callable[[], None]:
    tensor = filled(1, 0.01, f"cuda:{device}")

    def act() -> None:
        for _ in range(4):
            dist.all_reduce(tensor)
        torch.cuda.current_stream(device).synchronize()  # or the queue grows faster than it is worked off

    return act


def reduce_on_both() -> Callable[[], None]:
    pair = [filled(1, 0.01, "cuda:0"), filled(1, 0.01, "cuda:1")]

    def act() -> None:
        torch.cuda.nccl.all_reduce(pair)
        torch.cuda.current_stream(0).synchronize()

    return act


def come_and_go(device: int, end: str) -> Callable[[], None]:
    tensor = filled(1, 0.01, f"cuda:{device}")

    def act() -> None:
        with making:
            group = dist.new_group([0])
        dist.all_reduce(tensor, group=group)
        if end == "abort":
            group._get_backend(torch.device("cuda", device)).abort()
            with making:
                dist.distributed_c10d._world.pg_map.pop(group)
        else:
            with making:
                dist.destroy_process_group(group)

    return act


def are_few() -> bool:
    """Whether a thread made too few rounds yet. Allocations are quick: of them the test wants more."""
    return any(count < enough * (6 if name.startswith("allocate") else 1) for name, count in list(rounds.items()))


start(bind=False)
for index in (0, 1):
    dist.all_reduce(filled(1, 1, f"cuda:{index}"))
threads = [
    loop("allocate 0", allocate(0)),
    loop("allocate 1", allocate(1)),
    loop("reduce 0", reduce(0)),
    loop("reduce 1", reduce(1)),
    loop("reduce both", reduce_on_both()),
    loop("destroy", come_and_go(0, "destroy")),
    loop("another", come_and_go(1, "abort" if "abort" in sys.argv else "destroy")),
    loop("status", tracehook.status, partial(time.sleep, 0.01)),
]
if "switch" in sys.argv:
    threads.append(loop("switch", tracehook.disable, tracehook.enable, partial(time.sleep, 0.02)))
for thread in threads:
    thread.start()
# A slow or busy machine makes few rounds in that time.
while not over.wait(0.1) and (time.monotonic() < begin + seconds or (are_few() and time.monotonic() < begin + LONGEST)):
    pass
over.set()
for thread in threads:
    thread.join()
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
tracehook.enable()
status = tracehook.status()
tell(rounds=rounds, failures=failures, dropped=status["dropped"], state=status["state"])
live = {index: torch.cuda.memory_stats(index)["segment.all.current"] for index in (0, 1)}
wrong = [row for row in status["communicators"] if row["held"] != live[row["device"]]]
tell(live=live, wrong=wrong, communicators=len(status["communicators"]))
dist.destroy_process_group()
