"""Ranks that do not do the same, with a long SYMM_REGISTER_TIMEOUT: what each of them hears, and how soon."""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.symmetric_memory import ranks

from common import RANK, filled, leave, raised, start, tell
from heard import hear
from symmetric_tools import (
    REHEARSAL,
    SIZE,
    attempt,
    caught,
    empty,
    meet,
    reached,
    reduced,
    refill,
    symmetric,
    two_in_one_scope,
)


def scope_beside_a_collective() -> None:
    """One thread ends a scope, another one makes a collective: in opposite order on the ranks."""
    ordinary = filled(RANK + 1, SIZE, device)
    acts = [lambda: dist.all_reduce(ordinary), lambda: tell(made=symmetric(RANK + 1).numel())]
    threads = [
        threading.Thread(target=lambda act=act: tell(error=caught(act)[1]))
        for act in (acts if RANK == 0 else acts[::-1])
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    tell(sum=float(ordinary[0].cpu()), later=reduced(symmetric(RANK + 1)), synced=caught(tracehook.sync)[1])


def raises_inside() -> None:
    """One rank leaves a scope by an exception, the others come to its end."""
    kept = symmetric(RANK + 1)
    reduced(kept)

    def cancelled() -> None:
        with tracehook.symmetric():
            empty()
            if RANK == 1:
                raise ValueError("the request was cancelled")

    attempt(cancelled)
    tell(again=[reduced(symmetric(RANK + 1)) for _ in range(2)], synced=caught(tracehook.sync)[1])
    del kept


def is_interrupted() -> None:
    """One rank waits at the end of a scope, and a handler of a signal ends its wait before the other one comes."""

    def handle(*_: object) -> None:
        raise InterruptedError("the request was cancelled")

    if RANK == 1:
        signal.signal(signal.SIGALRM, handle)
        signal.alarm(6)
        attempt(lambda: symmetric(1))
        hear_of_it()
    else:
        hear_of_it()
        attempt(lambda: symmetric(1))
    tell(again=reduced(symmetric(RANK + 1)))


def hear_of_it() -> None:
    """Go on when the other rank has printed that the wait is over."""
    if RANK == 0:
        hear("ended its wait at 'register windows' by InterruptedError")
    meet()


def runs_out_of_memory() -> None:
    """One rank's allocation in a scope fails, which the others' does not."""

    def made() -> None:
        with tracehook.symmetric():
            empty(SIZE if RANK == 0 else 1 << 22)

    attempt(made)
    tell(left=left())
    tell(again=reduced(symmetric(RANK + 1)))


def left() -> int:
    """Return the error that the runtime keeps for whoever asks next, as NCCL does in each collective."""
    return int(ctypes.CDLL(None if REHEARSAL else "libcudart.so.13").cudaPeekAtLastError())


def skips() -> None:
    """One rank skips a scope, and makes the collective that comes after it."""
    ordinary = filled(RANK + 1, 1, device)
    kept = symmetric(1)
    dist.all_reduce(ordinary)
    if RANK == 0:
        attempt(lambda: symmetric(1))
    dist.all_reduce(refill(ordinary, RANK + 1))
    tell(sum=float(ordinary[0].cpu()), again=reduced(symmetric(RANK + 1)), synced=caught(tracehook.sync)[1])
    del kept


def differs_in_a_group() -> None:
    """Of two calls of one group of NCCL, each rank passes another tensor to the second."""
    ordinary, tensors = filled(RANK + 1, 1, device), two_in_one_scope(RANK + 1, RANK + 1)

    def coalesced() -> None:
        with dist._coalescing_manager(device=device):
            dist.all_reduce(ordinary)
            dist.all_reduce(tensors[RANK])

    attempt(coalesced)
    torch.cuda.synchronize()
    tell(sum=float(ordinary[0].cpu()), again=[reduced(refill(each, RANK + 1)) for each in tensors])


def opposite_order() -> None:
    """One rank ends a scope before a collective that is new, the other one after it."""
    first = symmetric(RANK + 1)
    reduced(first)
    acts = [lambda: symmetric(1), lambda: dist.all_gather_into_tensor(empty(2), empty(1))]
    if RANK == 0:
        attempt(acts[0])
        acts[1]()
    else:
        acts[1]()
        attempt(acts[0])
    tell(again=reduced(refill(first, RANK + 1)))


def goes_on_after_mixed() -> None:
    """One rank passes ordinary memory where the other has a known window, catches what it hears, and goes on."""
    inside, outside = symmetric(RANK + 1), filled(RANK + 1, SIZE, device)
    reduced(inside)
    refill(inside, RANK + 1)
    more = [filled(value * (RANK + 1), SIZE, device) for value in (100, 1000)]
    if RANK == 0:
        attempt(lambda: dist.all_reduce(outside))
    else:
        dist.all_reduce(inside)  # and rank 0 never comes
        hear("no rank makes another call on this communicator")
    tell(errors=[raised(dist.all_reduce, tensor) or None for tensor in more])
    if RANK != 0:
        hear("which no abort ends")
    else:
        hear("aborting")
    tell(reached=reached())
    meet()


def stands_in_a_kernel() -> None:
    """The same, and the program waits for the device for ever on the rank that no abort frees."""
    ranks.LAST_WORDS = 2.0
    inside, outside = symmetric(RANK + 1), filled(RANK + 1, SIZE, device)
    reduced(inside)
    dist.all_reduce(outside if RANK == 0 else inside)
    hear("aborting" if RANK == 0 else "which no abort ends")
    if RANK != 0:  # as in a wait for the device; where nothing ends it, that is over after four times LAST_WORDS
        time.sleep(8 if os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0" else 20)
    tell(ended_by_itself=True)


def stands_in_an_abort() -> None:
    """The same, and torch's abort does not come back on the rank that needs it."""
    ranks.ABORT, ranks.LAST_WORDS = 1.0, 2.0
    dist.ProcessGroup.abort = lambda _: time.sleep(40)
    inside, outside = symmetric(RANK + 1), filled(RANK + 1, SIZE, device)
    reduced(inside)
    dist.all_reduce(outside if RANK == 0 else inside)
    hear("does not come back" if RANK == 0 else "which no abort ends")
    time.sleep(20)
    tell(ended_by_itself=True)


def swaps_what_is_known() -> None:
    """Both tensors were used alike before; then each rank reduces another one, and both go on."""
    first, second = two_in_one_scope(RANK + 1, RANK + 1)
    reduced(first)
    reduced(second)
    mine = first if RANK == 0 else second
    begin = time.monotonic()
    error = None
    dist.all_reduce(mine)
    while error is None and time.monotonic() < begin + 20:
        time.sleep(0.1)
        error = caught(lambda: dist.all_reduce(first))[1]
    tell(error=error, seconds=round(time.monotonic() - begin, 1))


def was_late_once() -> None:
    """One rank comes late to the first scope. Later the other one reduces what is new, and it reduces what is known."""
    ordinary = filled(RANK + 1, SIZE, device)
    reduced(ordinary)
    if RANK == 1:
        time.sleep(3)
    new = symmetric(RANK + 1)
    reduced(ordinary)
    attempt(lambda: (dist.all_reduce(new if RANK == 0 else ordinary), torch.cuda.synchronize()))
    hear("aborting")
    meet()


def does_not_come_for_long() -> None:
    """One rank does not come to the end of a scope before somebody lets it go on."""
    kept = symmetric(RANK + 1)
    reduced(kept)
    while RANK == 1 and not Path(os.environ["TEST_GO"]).exists():
        time.sleep(0.05)
    tell(sum=reduced(symmetric(RANK + 1)))


device = start(seconds=60)
globals()[sys.argv[1]]()
leave()
