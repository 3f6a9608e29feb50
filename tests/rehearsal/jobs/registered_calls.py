"""Calls that gain by registered memory, and calls that do not. Argument: the case, and what it takes.

Without an argument they are made in memory that other processes can map.
"""

import ctypes
import os
import sys
import time

if hosts := os.environ.get("TEST_HOSTS"):  # each with a block of the ranks; the emulated NCCL reads it early
    os.environ["NCCL_HOSTID"] = str(int(os.environ["RANK"]) * int(hosts) // int(os.environ["WORLD_SIZE"]))

import torch
import torch.distributed as dist
import tracehook
from torch.cuda import nccl
from tracehook.symmetric_memory import registered_calls

from common import MB, RANK, WORLD, filled, must, nccl_calls, passed_on, start, tell

BEGIN = ("apart", "one_process")  # by themselves


def zeros(size_mb: float) -> torch.Tensor:
    return torch.zeros(int(size_mb * MB) // 4, device=device)


def parts(whole: torch.Tensor) -> list[float]:
    """Return the first element of each rank's part."""
    return [part[0].item() for part in whole.cpu().chunk(WORLD)]


def ends(tensor: torch.Tensor) -> list[float]:
    return list(tensor.cpu()[[0, -1]].tolist())


def registrations() -> int:
    """Return how many there are now."""
    return nccl_calls("ncclCommRegister") - nccl_calls("ncclCommDeregister")


def gather_in_place(whole: torch.Tensor) -> list[float]:
    """Gather what each rank writes into its own part."""
    own = whole.chunk(WORLD)[RANK]
    own.copy_(filled(RANK + 7, 16, device))
    dist.all_gather_into_tensor(whole, own)
    return parts(whole)


def calls() -> None:
    """A small gather, a large one, the same in place, and a transfer."""
    small = filled(RANK + 1, 1, device)
    dist.all_reduce(small)
    gathered = torch.empty(WORLD * MB // 4, device=device)
    dist.all_gather_into_tensor(gathered, small)  # too small to gain
    tell(after_small=nccl_calls("ncclCommRegister"))
    part, whole = filled(RANK + 1, 16, device), zeros(WORLD * 16)
    dist.all_gather_into_tensor(whole, part)
    tell(gathered=parts(whole), after_gather=nccl_calls("ncclCommRegister"))
    tell(in_place=gather_in_place(whole))
    block = filled(RANK + 1, 40, device)
    got = passed_on(block) if WORLD > 1 else torch.zeros_like(block)
    tell(sent=ends(got), status=tracehook.status(), registration=tracehook.explain(whole).registration)
    held = registrations()
    del whole, block, got
    torch.cuda.empty_cache()
    tell(held=held, left=registrations())
    free, total = torch.cuda.mem_get_info()
    tell(used=total - free)


def sent_then_gathered() -> None:
    """One tensor is sent first, and gathered into next; the order of the ranks' segments is the program's."""
    tell(graph_register=os.environ.get("NCCL_GRAPH_REGISTER"))
    whole = filled(RANK + 1, WORLD * 16, device)
    got = passed_on(whole)
    tell(received=parts(got), gathered=gather_in_place(got))  # in the segment that a message used
    del whole, got
    torch.cuda.empty_cache()
    tell(left=registrations())


def sent_from_scope(size_mb: str) -> None:
    """A tensor of a scope is sent, and broadcast, to a rank whose buffer is ordinary memory."""
    with tracehook.symmetric():
        source = zeros(int(size_mb))
    source.copy_(filled(3, int(size_mb), device))
    target = torch.zeros_like(source)
    if RANK == 0:
        dist.send(source, 1)
    elif RANK == 1:
        dist.recv(target, 0)
        tell(received=ends(target))
        target.zero_()
    dist.broadcast(source if RANK == 0 else target, 0)
    if RANK == 1:
        tell(broadcast=ends(target))


def sent_elsewhere() -> None:
    """A tensor of a scope goes through another group, which has no window on it, into ordinary memory."""
    elsewhere = dist.new_group(list(range(WORLD)))
    with tracehook.symmetric():
        source = filled(3, 4, device)
    target = torch.zeros_like(source)
    for group in (None, elsewhere):
        if RANK == 0:
            dist.send(source, 1, group=group)
        else:
            dist.recv(target, 0, group=group)
            tell(received=ends(target))
        dist.broadcast(source if RANK == 0 else target.zero_(), 0, group=group)
        tell(broadcast=ends(target if RANK else source))


def captured_from_scope() -> None:
    """A graph sends, broadcasts and gathers a tensor of a scope, each into ordinary memory."""
    with tracehook.symmetric(graph=True):
        source = zeros(4)
    received, target = torch.empty_like(source), torch.empty_like(source)
    whole = torch.empty(WORLD * len(source), device=device)

    def exchange() -> None:
        if RANK == 0:
            dist.send(source, 1)
        elif RANK == 1:
            dist.recv(received, 0)
        dist.broadcast(source if RANK == 0 else target, 0)
        dist.all_gather_into_tensor(whole, source)

    exchange()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exchange()
    for number in (3, 4):
        source.copy_(filled(number + RANK, 4, device))
        graph.replay()
        torch.cuda.synchronize()
        if RANK == 1:
            tell(**{f"sent {number}": [*ends(received), *ends(target)]})
        tell(**{f"gathered {number}": parts(whole)})
    tell(set_for_nccl=tracehook.status()["memory"]["set_for_nccl"])
    graph.reset()


def sent_among_hosts() -> None:
    """A tensor of a scope goes into ordinary memory, and ordinary memory into a scope: to each rank, and from each."""
    with tracehook.symmetric():
        ours = zeros(4)
    ordinary = torch.empty_like(ours)
    received = []
    for source, target in ((ours, ordinary), (ordinary, ours)):
        for peer in range(WORLD):
            source.copy_(filled(RANK, 4, device))
            if peer != RANK:
                dist.recv(target, peer)
                received.append(ends(target) == [peer, peer])
                continue
            for other in set(range(WORLD)) - {RANK}:
                dist.send(source, other)
    tell(received=received)


def exchanged_from_scope(size_mb: str, what: str) -> None:
    """A tensor of a scope is exchanged for one of ordinary memory: as what is sent, or as what is received."""
    with tracehook.symmetric():
        ours = zeros(int(size_mb))
    ordinary = torch.empty_like(ours)
    source, target = (ours, ordinary) if what == "sent" else (ordinary, ours)
    source.copy_(torch.cat([filled(10 * RANK + part, int(size_mb) / WORLD, "cpu") for part in range(WORLD)]))
    dist.all_to_all_single(target, source)
    tell(received=parts(target))


def switched() -> None:
    """Gathers with tracehook on, off and on again."""

    def held() -> int:
        return sum(row["held"] for row in tracehook.status()["communicators"])

    part, whole = filled(RANK + 1, 16, device), zeros(WORLD * 16)
    dist.all_gather_into_tensor(whole, part)
    tell(on=held())
    torch.cuda.synchronize()
    tracehook.disable()
    tell(off=held())
    dist.all_gather_into_tensor(whole, part)
    tell(still_off=held())
    tracehook.enable()
    dist.all_gather_into_tensor(whole, part)
    tell(on_again=held(), sums=parts(whole))


def foreign_memory() -> None:
    """A gather into memory that the program got from cudaMalloc itself."""
    nbytes = WORLD * 16 * MB
    pointer = ctypes.c_void_p()
    must(ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)))
    storage = torch._C._construct_storage_from_data_pointer(pointer.value, device, nbytes)
    whole = torch.empty(0, device=device).set_(storage, 0, (nbytes // 4,))
    dist.all_gather_into_tensor(whole, filled(RANK + 1, 16, device))
    tell(gathered=parts(whole))


def captured() -> None:
    """A gather in a graph."""
    part, whole = filled(RANK + 1, 24, device), zeros(WORLD * 24)
    dist.all_reduce(torch.zeros(1, device=device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_gather_into_tensor(whole, part)
    graph.replay()
    torch.cuda.synchronize()
    tell(gathered=parts(whole), variable=os.environ.get("NCCL_GRAPH_REGISTER"))


def by_table() -> None:
    """How many registrations each gather and a transfer made. A tuning table may say which calls gain."""
    made: dict[str, object] = {}
    for size in (1, 2, 4):  # MiB of the output
        part, whole = filled(RANK + 1, size / 2, device), zeros(size)
        before = nccl_calls("ncclCommRegister")
        dist.all_gather_into_tensor(whole, part)
        made |= {f"gathered {size}": nccl_calls("ncclCommRegister") - before, f"values {size}": parts(whole)}
        told = tracehook.explain(whole, dist.group.WORLD).registration
        del part, whole
        torch.cuda.empty_cache()
    given = filled(RANK + 1, 40, device)
    before = nccl_calls("ncclCommRegister")
    got = passed_on(given)
    made |= {"sent 40": nccl_calls("ncclCommRegister") - before, "sent": ends(got)[0] + RANK}
    tell(made=made, told=told)


def apart(variable: str, value: str, what: str) -> None:
    """Rank 1 differs in a variable, or it has no tracehook (`-`)."""
    registered_calls.LONGEST = 3.0 if variable == "-" else 10.0  # there somebody answers
    if RANK == 1 and variable != "-":
        os.environ[variable] = value
    if RANK == 0 or variable != "-":
        tracehook.enable()
    start()
    begin = time.monotonic()
    sums = []
    for number in range(2):
        part, whole = filled(RANK + 1 + number, 48, device), zeros(WORLD * 48)
        if what == "gather":
            dist.all_gather_into_tensor(whole, part)
            sums.append(parts(whole))
        else:
            sums.append(ends(passed_on(part)))
    tell(sums=sums, seconds=time.monotonic() - begin)
    time.sleep(1.5)  # so that the watchdog of this rank still answers


def one_process() -> None:
    """One process gathers between its own two devices, as torch.nn.DataParallel does, in calls that gain elsewhere."""
    shares = [filled(number + 1, 16, f"cuda:{number}") for number in range(2)]
    wholes = [torch.empty(2 * 16 * MB // 4, device=share.device) for share in shares]
    nccl.all_gather(shares, wholes)
    tell(gathered=[whole.cpu()[:: 16 * MB // 4].tolist() for whole in wholes])


case, *more = sys.argv[1:] or ["calls"]
device = torch.device("cuda", RANK) if case in BEGIN else start()
globals()[case](*more)
if dist.is_initialized():
    dist.destroy_process_group()
