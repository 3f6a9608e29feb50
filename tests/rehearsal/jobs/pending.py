"""Where the next tensors of a scope lie, while other streams still use memory that the program gave back.

Each rank's device takes its own time, drawn from the seed and the rank; the program is the same.
"""

import ctypes
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from tracehook import _core
from tracehook.ipc import PeerGroup

from common import RANK, WORLD, must, passed_on, start, tell, together, until

CASE, SEED = sys.argv[1], int(sys.argv[2])
ROUNDS, LONG = 12, 12_000_000  # LONG: longer than a scope waits

program, device_time = random.Random(SEED), random.Random(SEED * WORLD + RANK)
runtime = ctypes.CDLL(None)
device = start()
side = torch.cuda.Stream()
places: list[list[int]] = []
segments: list[int] = []


def busy(stream: torch.cuda.Stream, microseconds: int | None = None) -> None:
    """Let the stream take a while: on each rank another."""
    taken = device_time.choice([0, 0, 2_000, 15_000]) if microseconds is None else microseconds
    function = ctypes.cast(runtime.usleep, ctypes.c_void_p)
    must(runtime.cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), function, ctypes.c_void_p(taken)))


def made(rows: int) -> torch.Tensor:
    """Return a tensor of the innermost scope, and note where it lies."""
    tensor = torch.empty(rows, 4096, device=device)
    number = _core.pool_segment_at(tensor.data_ptr())
    if number not in segments:
        segments.append(number)
    begin = next(row.address for row in _core.pool_segments() if row.id == number)
    places.append([segments.index(number), tensor.data_ptr() - begin])
    return tensor


def reduced(tensor: torch.Tensor) -> None:
    """Its sum over the ranks must be right."""
    tensor.copy_(torch.full(tensor.shape, RANK + 1.0))
    dist.all_reduce(tensor)
    tell(wrong=not bool((tensor.cpu() == WORLD * (WORLD + 1) / 2).all()))


def used_beside(tensor: torch.Tensor, microseconds: int | None = None) -> None:
    """Use it on the side stream, which is not done yet when the program gives it back."""
    side.wait_stream(torch.cuda.current_stream())
    busy(side, microseconds)
    tensor.record_stream(side)


def sizes() -> Iterator[int]:
    """How large the tensors are: on all ranks alike."""
    return (program.choice([3, 7, 17, 33]) for _ in range(ROUNDS))


def side_stream() -> None:
    """The tensor of each round goes while the side stream uses it."""
    for rows in sizes():
        with tracehook.symmetric():
            tensor = made(rows)
        reduced(tensor)
        used_beside(tensor)


def sends() -> None:
    """Each rank sends its tensor to the next one."""
    for rows in sizes():
        with tracehook.symmetric():
            tensor = made(rows)
        reduced(tensor)
        busy(torch.cuda.current_stream())
        passed_on(tensor)
        if program.random() < 0.5:
            tensor.record_stream(side)
            busy(side)


def inside() -> None:
    """Tensors go inside of scopes, also of nested ones, and the scope goes on."""
    for rows in sizes():
        with tracehook.symmetric():
            tensor = made(rows)
            used_beside(tensor)
            del tensor
            other = made(rows)
            with tracehook.symmetric():
                used_beside(other)
                del other
                third = made(rows)
        reduced(third)
        used_beside(third)


def other_thread() -> None:
    """A thread that the program waits for gives the tensor back."""
    for rows in sizes():
        with tracehook.symmetric():
            held = [made(rows)]
        reduced(held[0])
        used_beside(held[0])
        together(held.clear)


def scopes_beside() -> None:
    """Another thread is in and out of scopes of a group of its own, for as long as each rank takes."""
    twin = dist.new_group()
    is_over = threading.Event()

    def make() -> None:
        torch.cuda.set_device(device)
        while not is_over.is_set():
            with tracehook.symmetric(twin):
                time.sleep(device_time.choice([0.0, 0.004, 0.012]))

    beside = threading.Thread(target=make)
    beside.start()
    side_stream()
    is_over.set()
    beside.join()


def lent() -> None:
    """Each rank lends its tensor to the others, and closes the group of peers when it likes. Another group stays."""
    others = {*range(WORLD)} - {RANK}
    with tracehook.symmetric():
        kept = made(3)
    beside = PeerGroup()
    beside.exchange(dict.fromkeys(others, kept))
    for rows in sizes():
        with tracehook.symmetric():
            tensor = made(rows)
        reduced(tensor)
        with PeerGroup() as peers:
            peers.exchange(dict.fromkeys(others, tensor))
            del tensor
            time.sleep(device_time.choice([0.0, 0.015, 0.04]))
    beside.close()


def lent_on() -> None:
    """The group of peers stays open while the ranks lend tensors and free them, and is closed in the end."""
    others = {*range(WORLD)} - {RANK}
    with PeerGroup() as peers:
        for rows in sizes():
            with tracehook.symmetric():
                tensor = made(rows)
            tensor.copy_(torch.full(tensor.shape, RANK + 1.0))
            dist.all_reduce(tensor)
            there: dict[int, Any] = dict(peers.exchange(dict.fromkeys(others, tensor)))
            if program.random() < 0.5:
                tell(wrong=any((one.get().cpu() != WORLD * (WORLD + 1) / 2).any() for one in there.values()))
            busy(torch.cuda.current_stream())
        del tensor, there
    for rows in sizes():
        with tracehook.symmetric():
            tensor = made(rows)
        reduced(tensor)


def lent_much() -> None:
    """The program frees tensors that it has lent, and keeps the group open."""
    with PeerGroup() as peers:
        for _ in range(4):
            with tracehook.symmetric():
                tensor = made(8 << 10)
            peers.exchange(dict.fromkeys({*range(WORLD)} - {RANK}, tensor))
            del tensor


def nested() -> None:
    """A scope inside of another one, whose memory was given back before, and graphs' memory beside it."""
    for rows in sizes():
        with tracehook.symmetric(graph=program.random() < 0.5):
            outer = made(rows)
            with tracehook.symmetric(graph=True):
                inner = made(rows)
        for tensor in (outer, inner):
            reduced(tensor)
            used_beside(tensor)
        del outer, inner, tensor


def equal() -> None:
    """Blocks of one size are free in several segments, whose addresses come in another order on each rank."""
    tracehook.reserve(0, small_nbytes=8 << 20)
    for rows in (3, 700, 960):
        held: list[torch.Tensor] = []
        for _ in range(2):
            with tracehook.symmetric():
                held += [made(rows) for _ in range(3)]
            for tensor in held:
                reduced(tensor)
            program.shuffle(held)
            del held[2:], tensor


def calls() -> None:
    """The program gives up what a call has used, without a wait for the device."""
    source = torch.full((1 << 20,), RANK + 1.0).to(device)
    for number in range(4 * ROUNDS):
        result = tracehook.all_reduce(source)
        busy(torch.cuda.current_stream())
        if number % 3 == 0:
            again = tracehook.all_reduce(result)
        if number % 7 == 0:
            del again, result
    torch.cuda.synchronize()
    result = tracehook.all_reduce(source)
    tell(sum=float(result.cpu()[-1]), symmetric=tracehook.explain(result).symmetric, tried=tracehook.trim() >= 0)


def beside_a_pool() -> None:
    """A scope inside of the program's own use_mem_pool, where not every torch looks for the end of a use."""
    pool = torch.cuda.MemPool()
    for rows in (3, 7):
        with torch.cuda.use_mem_pool(pool), tracehook.symmetric():
            tensor = made(rows)
        reduced(tensor)
        used_beside(tensor, LONG if rows == 3 else 0)
        del tensor


def own_events() -> None:
    """The program asks for events of its own, by the same functions of CUDA as torch, inside of the scope."""
    answered = []
    for recorded in (True, False):
        with tracehook.symmetric():
            tensor = made(3)
            if recorded:
                used_beside(tensor, 2_000)
            del tensor
            event = torch.Event(device)
            event.record(side)
            answered.append(until(event.query, 20))
    tell(answered=answered)


def stuck() -> None:
    """The device does not come to an end: the scope goes on in the end."""
    for microseconds in (LONG, 0):
        with tracehook.symmetric():
            tensor = made(3)
        reduced(tensor)
        used_beside(tensor, microseconds)
        del tensor


globals()[CASE]()
tell(places=places, distinct=len({tuple(place) for place in places}))
if CASE != "beside_a_pool":
    torch.cuda.synchronize()
dist.destroy_process_group()
