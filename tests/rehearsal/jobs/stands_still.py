"""Which call of ours stops all Python threads while NCCL hangs and a thread waits for it in the allocator.

Arguments: why it waits (it frees, or it allocates in a scope), and the seconds that NCCL hangs, at least.
"""

import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import tracehook

from common import MB, made_by_hand, nccl_calls, start, tell, until
from symmetric_tools import empty, symmetric


def thread_of(act: Callable[[], object], name: str | None = None) -> threading.Thread:
    """Start a thread, which may be stuck until the hang is over."""
    thread = threading.Thread(target=act, name=name)
    thread.start()
    return thread


HANG = float(sys.argv[2])
device = start()
ordinary = empty(1)
ours = symmetric(1)
group = dist.new_group([0], device_id=device)
with tracehook.symmetric(group):
    pass
_, communicator = made_by_hand()
tracehook.attach_communicator(communicator.value or 0, name="by hand")
# Before the hang: torch answers under the GIL, when it can lock the communicator.
of_torch = dist.group.WORLD._get_backend(device)._comm_ptr()
torch.cuda.synchronize()
segment = torch.empty(48 * MB, dtype=torch.uint8, device=device)
entered, leave, over = threading.Event(), threading.Event(), threading.Event()
began = float("inf")  # no later than the hang


def stays() -> None:
    with tracehook.symmetric(group):
        entered.set()
        leave.wait()


def collective() -> None:
    global began
    began = time.monotonic()
    dist.all_reduce(ordinary)
    over.set()


def free() -> None:
    global segment
    before = nccl_calls("ncclAllReduce")
    thread_of(collective)
    until(lambda: nccl_calls("ncclAllReduce") > before)
    del segment
    torch.cuda.empty_cache()


def allocate() -> None:
    # torch frees no segment while a scope is open, so another thread's end of a scope needs another hang.
    global began
    waiting.append(thread_of(stays))
    entered.wait()
    with tracehook.symmetric(group):
        began = time.monotonic()
        empty(48)
        over.set()


def enter(groups: object, graph: bool = False, allocates: bool = False) -> None:
    with tracehook.symmetric(groups, graph=graph):
        if allocates:
            empty(1)


def explain() -> None:
    tracehook.explain(ours, group)
    tracehook.explain(ordinary)


ACTS: dict[str, Callable[[], object]] = {
    "leave_scope": leave.set,
    "scope": lambda: enter(group),
    "second_scope": lambda: enter(group),
    "scope_of_graphs": lambda: enter(group, graph=True),
    "scope_of_two_groups": lambda: enter([group, dist.group.WORLD], allocates=True),
    "is_symmetric": lambda: tracehook.is_symmetric(ours, group),
    "explain": explain,
    "new_group": lambda: enter(dist.new_group([0], device_id=device)),
    "sync": lambda: tracehook.sync(group),
    "trim": lambda: tracehook.trim(group),
    "detach": lambda: tracehook.detach_communicator(communicator.value or 0),
    "detach_what_hangs": lambda: tracehook.detach_communicator(of_torch),
    "status": tracehook.status,
    "disable": tracehook.disable,
    "enable": tracehook.enable,
}
waiting: list[threading.Thread] = []
waiting.append(thread_of(free if sys.argv[1] == "free" else allocate))
until(lambda: began < float("inf"))
time.sleep(0.5)
hangs = {}
for name, act in ACTS.items():
    waiting.append(thread_of(act, name))
    time.sleep(0.1)
    hangs[name] = not over.is_set() and time.monotonic() < began + HANG
(asks,) = [thread for thread in waiting if thread.name == "status"]
asks.join(began + HANG - time.monotonic())
tell(hangs=hangs, status_waits=asks.is_alive() or time.monotonic() > began + HANG)
for thread in waiting:
    thread.join(60)
tell(alive=[thread.name for thread in waiting if thread.is_alive()], state=tracehook.status()["state"])
torch.cuda.synchronize()
dist.destroy_process_group()
