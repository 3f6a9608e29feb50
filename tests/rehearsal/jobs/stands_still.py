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

from common import MB, made_by_hand, nccl_calls, start, tell
from symmetric_tools import empty, symmetric


def threads(*acts: Callable[[], object]) -> list[threading.Thread]:
    """Start a thread for each act, which may be stuck until the hang is over."""
    started = [threading.Thread(target=act, name=act.__name__) for act in acts]
    for thread in started:
        thread.start()
    return started


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


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
    threads(collective)
    wait_until(lambda: nccl_calls("ncclAllReduce") > before)
    del segment
    torch.cuda.empty_cache()


def allocate() -> None:
    # torch frees no segment while a scope is open, so another thread's end of a scope needs another hang.
    global began
    waiting.extend(threads(stays))
    entered.wait()
    with tracehook.symmetric(group):
        began = time.monotonic()
        empty(48)
        over.set()


def leave_scope() -> None:
    leave.set()


def scope() -> None:
    with tracehook.symmetric(group):
        pass


def second_scope() -> None:
    with tracehook.symmetric(group):
        pass


def scope_of_graphs() -> None:
    with tracehook.symmetric(group, graph=True):
        pass


def scope_of_two_groups() -> None:
    with tracehook.symmetric([group, dist.group.WORLD]):
        empty(1)


def status() -> None:
    tracehook.status()


def is_symmetric() -> None:
    tracehook.is_symmetric(ours, group)


def explain() -> None:
    tracehook.explain(ours, group)
    tracehook.explain(ordinary)


def new_group() -> None:
    other = dist.new_group([0], device_id=device)
    with tracehook.symmetric(other):
        pass


def sync() -> None:
    tracehook.sync(group)


def trim() -> None:
    tracehook.trim(group)


def detach() -> None:
    tracehook.detach_communicator(communicator.value or 0)


def detach_what_hangs() -> None:
    tracehook.detach_communicator(of_torch)


def disable() -> None:
    tracehook.disable()


def enable() -> None:
    tracehook.enable()


waiting: list[threading.Thread] = []
waiting += threads(free if sys.argv[1] == "free" else allocate)
wait_until(lambda: began < float("inf"))
time.sleep(0.5)
hangs = {}
for act in (
    leave_scope,
    scope,
    second_scope,
    scope_of_graphs,
    scope_of_two_groups,
    is_symmetric,
    explain,
    new_group,
    sync,
    trim,
    detach,
    detach_what_hangs,
    status,
    disable,
    enable,
):
    waiting += threads(act)
    time.sleep(0.1)
    hangs[act.__name__] = not over.is_set() and time.monotonic() < began + HANG
(asks,) = [thread for thread in waiting if thread.name == "status"]
asks.join(began + HANG - time.monotonic())
tell(hangs=hangs, status_waits=asks.is_alive() or time.monotonic() > began + HANG)
for thread in waiting:
    thread.join(60)
tell(alive=[thread.name for thread in waiting if thread.is_alive()], state=tracehook.status()["state"])
torch.cuda.synchronize()
dist.destroy_process_group()
