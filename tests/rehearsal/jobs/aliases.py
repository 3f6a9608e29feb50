"""Memory with two addresses, as whoever retains its handle maps it once more; the first argument says which memory."""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p

import torch
import torch.distributed as dist

from common import MB, must, start, tell, tensor_at
from driver import (
    DESCRIPTOR,
    Access,
    Properties,
    allocated,
    created,
    cuda,
    mapped,
    nccl,
    peek,
    poke,
    retained,
    runtime,
    unmapped,
    used,
)

SIZE = 16 * MB
COUNT = SIZE // 4
RELAXED = 2


def made(kind: str) -> int:
    """Return the address of new memory, whose handle is held by nobody but its mapping."""
    if kind == "nccl":
        pointer = c_void_p()
        must(nccl.ncclMemAlloc(byref(pointer), SIZE))
        return pointer.value or 0
    handle = created(SIZE, DESCRIPTOR if kind == "exportable" else 0)
    address = mapped(handle, SIZE)
    must(cuda.cuMemRelease(handle))
    return address


def ended(kind: str, address: int) -> None:
    if kind == "nccl":
        must(nccl.ncclMemFree(c_void_p(address)))
    else:
        unmapped(address, SIZE)


def types_of(handle: c_uint64) -> int:
    properties = Properties()
    must(cuda.cuMemGetAllocationPropertiesFromHandle(byref(properties), handle))
    return int(properties.handle_types)


def held() -> int:
    """Return how much memory is taken, without what torch's allocator keeps for later."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return used()


def looked_at(kind: str) -> None:
    """Copies, torch's operations and collectives on either address; the first address ends before the second."""
    start()
    first = made(kind)
    before = held() - SIZE
    handle = retained(first)
    types = types_of(handle)
    # Large and written by nobody: a rehearsal only notes such memory, as long as it has one address.
    noted = tensor_at(first, COUNT)
    noted.copy_(torch.empty_like(noted))
    second = mapped(handle, SIZE)
    must(cuda.cuMemRelease(handle))
    one, other = tensor_at(first, COUNT), tensor_at(second, COUNT)
    other.fill_(1.0)
    seen = [one[0].item(), one[COUNT // 2].item()]
    one.add_(1.0)
    seen.append(other[-1].item())
    dist.all_reduce(other)
    one.mul_(2.0)
    dist.all_gather_into_tensor(one, other)
    poke(first, 7)
    tell(types=types, seen=seen, after=other[1].item(), word=peek(second), held=held() - before)
    ended(kind, first)
    kept = held() - before
    word = peek(second)
    unmapped(second, SIZE)
    tell(kept=kept, still=word, left=held() - before)
    dist.destroy_process_group()


def in_a_capture() -> None:
    """A second address comes, is used and goes while a stream captures."""
    torch.cuda.init()
    first = made("exportable")
    poke(first, 3)
    stream, graph = c_void_p(), c_void_p()
    must(runtime.cudaStreamCreateWithFlags(byref(stream), 1))
    must(runtime.cudaStreamBeginCapture(stream, RELAXED))
    handle = retained(first)
    address = c_uint64()
    must(cuda.cuMemAddressReserve(byref(address), c_size_t(SIZE), c_size_t(0), c_uint64(0), c_ulonglong(0)))
    allowed = Access(1, 0, 3)
    did = [
        cuda.cuMemMap(address, c_size_t(SIZE), c_size_t(0), handle, c_ulonglong(0)),
        cuda.cuMemSetAccess(address, c_size_t(SIZE), byref(allowed), c_size_t(1)),
    ]
    seen = ctypes.c_uint32.from_address(address.value).value
    did += [cuda.cuMemUnmap(address, c_size_t(SIZE)), cuda.cuMemRelease(handle)]
    did.append(runtime.cudaStreamEndCapture(stream, byref(graph)))
    tell(did=did, seen=seen)


def attributes() -> None:
    found = []
    for number in (102, 103, 110):
        value = c_int(-1)
        must(cuda.cuDeviceGetAttribute(byref(value), number, 0))
        found.append(value.value)
    malloc = allocated()
    retain = cuda.cuMemRetainAllocationHandle(byref(c_uint64()), c_void_p(malloc))
    tell(attributes=found, of_malloc=retain)


globals()[sys.argv[1]](*sys.argv[2:])
