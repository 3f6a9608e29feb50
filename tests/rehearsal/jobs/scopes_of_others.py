"""Scopes of symmetric memory on a communicator that torch did not make. Argument: the case."""

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from types import SimpleNamespace

import torch
import torch.distributed as dist
import tracehook

import raw
from common import MB, RANK, WORLD, filled, raised, tell

CASE = sys.argv[1]


def reduced(tensor: torch.Tensor, value: float) -> float:
    """Fill a tensor, reduce it with the communicator, and return its first element."""
    tensor.copy_(filled(value, tensor.nbytes / MB, "cpu"))
    raw.must(group.all_reduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel()))
    torch.cuda.synchronize()
    return float(tensor[0].cpu())


def forms() -> None:
    """The communicator is named by its handle, by an object with it, and by group coordinators: one and the same."""
    pynccl = SimpleNamespace(comm=group.comm)
    given = {
        "int": group.comm.value,
        "c_void_p": group.comm,
        "object": pynccl,
        "sglang": SimpleNamespace(pynccl_comm=pynccl),
        "vllm": SimpleNamespace(device_communicator=SimpleNamespace(pynccl_comm=pynccl)),
    }
    made = {}
    for name, communicator in given.items():
        with tracehook.symmetric(communicator=communicator):
            made[name] = torch.empty(4 * MB, device="cuda")
        assert tracehook.symmetric(communicator=communicator) is tracehook.symmetric(communicator=group.comm)
    tell(sums={name: reduced(tensor, RANK + 1.0) for name, tensor in made.items()})
    tell(symmetric=[tracehook.is_symmetric(tensor, communicator=pynccl) for tensor in made.values()])
    tell(why=tracehook.explain(made["int"], communicator=group.comm).reason)
    tell(ordinary=tracehook.explain(torch.empty(4, device="cuda"), communicator=group.comm).reason)
    tell(windows=[(row["group"], row["windows"]) for row in tracehook.status()["windows"]])
    tell(synced=tracehook.sync(communicator=group.comm))
    del made
    tell(trimmed=tracehook.trim(communicator=group.comm))


def switched() -> None:
    """Registration is switched off and on again on all ranks."""
    before = tracehook.symmetric(communicator=group.comm)
    tracehook.disable()
    tracehook.enable()
    after = tracehook.symmetric(communicator=group.comm)
    enter(after)
    tell(made_anew=after is not before, windows=tracehook.status()["windows"][0]["windows"])


def bad() -> None:
    """What is no communicator, has none yet, is not known, has ended, or comes with a group."""
    symmetric = tracehook.symmetric
    tell(
        text=raised(symmetric, communicator="tp"),
        none=raised(symmetric, communicator=ctypes.c_void_p()),
        later=raised(symmetric, communicator=SimpleNamespace(pynccl_comm=None)),
        unknown=raised(symmetric, communicator=4096),
        both=raised(symmetric, dist.group.WORLD, communicator=group.comm),
    )
    scope = symmetric(communicator=group.comm)
    raw.must(raw.nccl.ncclCommAbort(group.comm))
    tell(ended=raised(symmetric, communicator=group.comm), entered=raised(enter, scope))


def enter(scope: AbstractContextManager[None]) -> None:
    """Make a tensor in a scope."""
    with scope:
        torch.empty(4 * MB, device="cuda")


def reserved() -> None:
    """What is reserved at the start serves later scopes, which then register nothing."""
    tracehook.reserve(64 * MB, communicator=group.comm, small_nbytes=3 * MB)
    before = tracehook.status()["windows"][0]["windows"]
    for step in range(3):
        with tracehook.symmetric(communicator=group.comm):
            large = torch.empty((4 + step) * MB, device="cuda")
            small = [torch.empty(MB // 8, device="cuda") for _ in range(4)]
        tell(sum=reduced(large, RANK + 1.0), symmetric=tracehook.is_symmetric(small[-1], communicator=group.comm))
    tell(before=before, after=tracehook.status()["windows"][0]["windows"])
    tell(negative=raised(tracehook.reserve, -1, communicator=group.comm))


torch.cuda.set_device(RANK)
if CASE == "no_store":
    torch.empty(1, device="cuda")
    group = raw.Group()
    tell(refused=raised(tracehook.symmetric, communicator=group.comm))
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    tracehook.use_store(store)
    CASE = "forms"
else:
    store = dist.FileStore(os.environ["TEST_STORE"], WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    torch.empty(1, device="cuda")
    group = raw.Group()
tell(raised=raised(globals()[CASE]))
raw.meet("done")
if CASE != "bad":
    raw.nccl.ncclCommAbort(group.comm)
