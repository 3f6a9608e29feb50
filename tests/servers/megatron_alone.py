"""Megatron's own module for NCCL's memory, unchanged, used as its buffers of parameters use it. Argument: the case.

Cases: *alike*: all of its seven functions, on two groups; *swapped*: the last rank makes its two tensors in the
opposite order; *unequal*: it makes the first one larger.
"""

import ctypes
import json
import logging
import os
import sys

import stand_ins
import torch
import torch.distributed as dist

import tracehook

CASE = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_ODD = RANK == WORLD - 1 and CASE != "alike"
MB = 1 << 20
SIZES = {"first": 32, "second": 32}  # MiB: a segment each


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def count(name: str) -> int:
    """Return how often this process called a function of the emulated NCCL."""
    ask = ctypes.CDLL(None).emu_nccl_call_count
    ask.restype = ctypes.c_uint64
    return int(ask(name.encode()))


def tensors() -> dict[str, torch.Tensor]:
    """Make the tensors of the case."""
    sizes = {name: size * (1 + (IS_ODD and CASE == "unequal" and name == "first")) for name, size in SIZES.items()}
    order = list(sizes)[::-1] if IS_ODD and CASE == "swapped" else list(sizes)
    return {name: torch.empty(sizes[name] * MB // 4, device="cuda") for name in order}


def summed(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Sum the ranks' numbers over the group, at the beginning of this tensor."""
    begin = tensor[:4096]
    begin.copy_(torch.full(begin.shape, RANK + 1.0))
    dist.all_reduce(begin, group=group)
    return float(begin[0].cpu())


def main() -> None:
    """Play the case."""
    torch.cuda.set_device(RANK)
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    device = torch.device("cuda", RANK)
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD, device_id=device)
    world, other = dist.group.WORLD, dist.new_group([0, 1])
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    stand_ins.megatron()
    from megatron.core import nccl_allocator as megatron

    megatron.init()
    pool = megatron.create_nccl_mem_pool(symmetric=True)
    with megatron.nccl_mem(pool, group=world, symmetric=True):
        made = tensors()
    tell(registered=count("ncclCommWindowRegister"))
    try:
        tell(sums=[summed(made[name], world) for name in SIZES])
    except RuntimeError as problem:
        tell(raised=str(problem))
    tell(reduced=count("ncclAllReduce"))
    if CASE != "alike":
        store.set(f"done {RANK}", "")
        store.wait([f"done {rank}" for rank in range(WORLD)])
        os._exit(0)  # at the end of the pool torch would deregister what was never registered, and end the process

    with megatron.nccl_mem(pool, group=world):  # a second use: its windows are dropped, and made anew at the end
        more = torch.empty(32 * MB // 4, device="cuda")
    shared = megatron.create_nccl_mem_pool()
    with megatron.MultiGroupMemPoolAllocator(shared, [world, other]):
        both = torch.empty(32 * MB // 4, device="cuda")
    manual = megatron.create_nccl_mem_pool()
    with megatron.MemPoolAllocatorWithoutRegistration(manual):
        later = torch.empty(32 * MB // 4, device="cuda")
    megatron.register_mem_pool(manual, other, symmetric=True)
    tell(more=[summed(more, world), summed(both, world), summed(both, other), summed(later, other)])
    tell(known=[(row["rank"], row["size"], row["held"]) for row in tracehook.status()["communicators"]])
    for held, group in ((pool, world), (shared, world), (shared, other), (manual, other)):
        megatron.deregister_mem_pool(held, group)
    dist.destroy_process_group()
    tell(left=tracehook.status()["communicators"])


main()
