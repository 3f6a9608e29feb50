"""A server whose memory sleeps: a pool whose allocator gives memory back to the driver while torch keeps the segments.

Arguments: the library of sleeper.cpp ("compile": made here); its handle types (0: nobody else can map the memory, 1: by
file descriptors); a seed; the number of steps; "late", if tracehook begins when the first tensors are there; "asleep",
if these sleep then; "share", to offer one to a peer.
"""

import ctypes
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook

from common import MB, RANK, WORLD, start, tell

TYPES, SEED, STEPS = map(int, sys.argv[2:5])
LARGE = 24 * MB // 4  # elements of a tensor that has a segment of its own


def library() -> str:
    if sys.argv[1] != "compile":
        return sys.argv[1]
    made = f"{tempfile.mkdtemp()}/libsleeper.so"
    source = Path(__file__).with_name("sleeper.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


LIBRARY = library()
device = start()
sleeper = ctypes.CDLL(LIBRARY)
sleeper.set_handle_types(TYPES)
allocator = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "sleeper_malloc", "sleeper_free")
pools = [torch.cuda.MemPool(allocator.allocator())]
draw = random.Random(SEED)  # alike on all ranks
wrong: list[str] = []
gave_back: list[int] = []


def pausable(elements: int) -> torch.Tensor:
    """Return a tensor in memory that sleeps."""
    with torch.cuda.use_mem_pool(pools[0]):
        return torch.empty(elements, device=device)


def ordinary(elements: int) -> torch.Tensor:
    """Return a tensor in memory that stays."""
    return torch.empty(elements, device=device)


def fill(tensor: torch.Tensor) -> torch.Tensor:
    """Write the rank, counted from 1: kernels do nothing on emulated devices, copies do."""
    return tensor.copy_(torch.full((tensor.numel(),), float(RANK + 1)))


def note(what: str, found: list[float], expected: list[float]) -> None:
    """Remember a result that is wrong."""
    if found != expected:
        wrong.append(f"{what}: {found} in place of {expected}")


def use(tensor: torch.Tensor, gathered: torch.Tensor) -> None:
    """Use both in collectives and transfers, and look at what came."""
    dist.all_gather_into_tensor(gathered, fill(tensor))
    note("all_gather", [gathered[0].item(), gathered[-1].item()], [1.0, float(WORLD)])
    if RANK % 2 == 0:
        dist.send(tensor, RANK + 1)
    else:
        dist.recv(tensor, RANK - 1)
    note("transfer", [tensor[-1].item()], [float(RANK // 2 * 2 + 1)])
    dist.all_reduce(fill(tensor))
    note("all_reduce", [tensor[0].item()], [WORLD * (WORLD + 1) / 2])


def free_memory() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def sleep_and_wake(times: int) -> None:
    """Sleep, and note how much less memory came back than the pool has."""
    pool_bytes = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot(pools[0].id))
    for _ in range(times):
        dist.barrier()
        before = free_memory()
        status = sleeper.fall_asleep()
        gave_back.append(pool_bytes - (free_memory() - before))
        asleep.append(tracehook.status()["asleep"]["bytes"])
        status |= sleeper.wake_up()
        note("the driver", [float(status)], [0.0])
        dist.barrier()


asleep: list[int] = []
pairs = [(pausable(LARGE), pausable(LARGE * WORLD))]
if "share" in sys.argv[5:]:
    with tracehook.ipc.PeerGroup() as peers:
        try:
            tell(refused="", shared=peers.exchange({1 - RANK: fill(pairs[0][0])}))
        except tracehook.ipc.PeerError as problem:
            tell(refused=str(problem))
        found = peers.exchange({1 - RANK: fill(ordinary(LARGE))})[1 - RANK]
        assert isinstance(found, tracehook.ipc.PeerTensor)
        tell(shared=found.get()[0].item())
        del found
if "late" in sys.argv[5:]:
    if "asleep" in sys.argv[5:]:
        sleeper.fall_asleep()
    tracehook.enable()
    tell(found=tracehook.status()["asleep"]["segments"])
    if "asleep" in sys.argv[5:]:
        sleeper.wake_up()
    use(*pairs[0])
for _ in range(STEPS):
    match draw.choice(("use", "use", "sleep", "sleep", "make", "drop", "apart", "often")):
        case "use":
            use(*draw.choice(pairs))
        case "sleep":
            sleep_and_wake(1)
        case "often":
            sleep_and_wake(10)
        case "make":
            pairs.append((draw.choice((pausable, ordinary))(LARGE), draw.choice((pausable, ordinary))(LARGE * WORLD)))
        case "drop" if len(pairs) > 1:
            pairs.pop(draw.randrange(len(pairs)))
            torch.cuda.empty_cache()
        case "apart":  # dropped while it sleeps
            pairs.append((pausable(LARGE), pausable(LARGE * WORLD)))
            sleeper.fall_asleep()
            pairs.pop()
            torch.cuda.empty_cache()
            note("the driver", [float(sleeper.wake_up())], [0.0])
            dist.barrier()
use(*pairs[0])
sleep_and_wake(1)
use(*pairs[0])
tell(wrong=wrong, gave_back=gave_back, asleep=asleep, status=tracehook.status()["asleep"])
pairs.clear()
pools.clear()  # torch's own hook would miss the communicator
torch.cuda.empty_cache()
dist.destroy_process_group()
