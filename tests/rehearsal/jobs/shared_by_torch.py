"""Tensors of one process that another process reads and writes; the first argument says what memory they are in."""

import sys

import torch
import torch.distributed as dist

from common import must, tell, tensor_at
from driver import Link, Other, cuda, exported, extent, left, mapped, retained, taken, unmapped
from opened_memory import close_memory, handle_of, opened

COUNT = 1 << 20


def on_device(value: float) -> torch.Tensor:
    return torch.full((COUNT,), float(value)).to("cuda:1")


def use(address: int) -> list[object]:
    """Read another process's tensor and write to it, on a stream of our own; return what was there."""
    theirs = tensor_at(address, COUNT, "cuda:1")
    copied = torch.empty_like(theirs)
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        copied.copy_(theirs, non_blocking=True)
        theirs.copy_(on_device(6), non_blocking=True)
    stream.synchronize()
    return [str(theirs.device), copied.cpu().unique().tolist(), theirs.data_ptr() == address]


def importer(link: Link) -> None:
    torch.cuda.set_device(1)
    place, descriptors = link.hear()
    if isinstance(place, str):
        base = opened(bytes.fromhex(place))
        seen = use(base)
        must(close_memory(base))
    else:
        assert isinstance(place, list)
        handle = taken(*descriptors)
        address = mapped(handle, place[1], device=1)
        seen = use(address + place[0])
        unmapped(address, place[1])
        must(cuda.cuMemRelease(handle))
    link.say([seen, left()])


kind = sys.argv[1]
other = Other(importer)
torch.cuda.set_device(1)
if kind == "pool":
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 1))
    backend = dist.group.WORLD._get_backend(torch.device("cuda", 1))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = on_device(5)
else:
    if kind == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    tensor = on_device(5)
torch.cuda.synchronize()
into, size = extent(tensor.data_ptr())
if kind == "plain":
    other.link.say(handle_of(tensor.data_ptr()).hex())
else:
    handle = retained(tensor.data_ptr())
    other.link.say([into, size], exported(handle))
    must(cuda.cuMemRelease(handle))
tell(importer=other.link.hear()[0], into=into, written=tensor.cpu().unique().tolist(), status=other.end())
