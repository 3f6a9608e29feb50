"""What a process may do with handles of memory, and what is refused."""

import ctypes
import os
import resource
import signal
import sys
from ctypes import byref, c_size_t, c_void_p

from common import must, tell
from driver import (
    DESCRIPTOR,
    FABRIC,
    READ,
    UNIT,
    Link,
    Other,
    Properties,
    allocated,
    created,
    cuda,
    export,
    exported,
    left,
    mapped,
    peek,
    poke,
    retained,
    runtime,
    take,
    taken,
    used,
)


def inside() -> None:
    """One process maps its memory twice, by the handle and by an import."""
    handle = created()
    first, second = mapped(handle), mapped(taken(exported(handle)))
    poke(first, 3)
    tell(seen=peek(second), different=first != second, cloexec=not os.get_inheritable(exported(handle)))


def refused() -> None:
    """What has no descriptor, and descriptors of something else."""
    plain = created(handle_types=0)
    shared = created()
    elsewhere = os.memfd_create("other")
    pipe, _ = os.pipe()
    properties = Properties(1, FABRIC, 1, 0)
    fabric = cuda.cuMemCreate(byref(ctypes.c_uint64()), c_size_t(UNIT), byref(properties), ctypes.c_ulonglong(0))
    plain_at, cuda_malloc = mapped(plain), allocated()
    retained_of_malloc = cuda.cuMemRetainAllocationHandle(byref(ctypes.c_uint64()), c_void_p(cuda_malloc))
    tell(
        plain=export(plain)[0],
        retained_plain=export(retained(plain_at))[0],
        cuda_malloc=retained_of_malloc,
        kinds=[export(shared, FABRIC)[0], export(shared, 2)[0], fabric],
        foreign=[take(each)[0] for each in (elsewhere, pipe, 0, 999, -1)],
        import_kinds=[take(exported(shared), kind)[0] for kind in (DESCRIPTOR, FABRIC, 2)],
        stale=[cuda.cuMemRelease(shared), cuda.cuMemRelease(shared), export(shared)[0]],
        taken_twice=cuda.cuMemMap(
            ctypes.c_uint64(plain_at), c_size_t(UNIT), c_size_t(0), created(), ctypes.c_ulonglong(0)
        ),
        unmapped=cuda.cuMemUnmap(ctypes.c_uint64(cuda_malloc), c_size_t(UNIT)),
    )


def accesses() -> None:
    """What a process may do with a mapping is what cuMemSetAccess said; else it crashes."""

    def reads_only(link: Link) -> None:
        address = mapped(created(), access=READ)
        link.say(peek(address))
        poke(address, 1)

    def has_none(link: Link) -> None:
        address = mapped(created(), access=0)
        link.say(0)
        peek(address)

    for name, body in (("read", reads_only), ("none", has_none)):
        other = Other(body)
        tell(**{name: [other.link.hear()[0], other.end() == -signal.SIGSEGV]})


def many() -> None:
    """A handle is no descriptor to CUDA: a job may have more of them than it may open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    handles = [created() for _ in range(200)]
    poke(mapped(handles[-1]), 1)
    for handle in handles[:-1]:
        must(cuda.cuMemRelease(handle))
    tell(used=used(), left=len(left()))


def peers() -> None:
    """Two devices of one process."""
    can = [[ctypes.c_int(-1) for _ in range(2)] for _ in range(2)]
    for one in range(2):
        for other in range(2):
            must(runtime.cudaDeviceCanAccessPeer(byref(can[one][other]), one, other))
    enabled = [runtime.cudaDeviceEnablePeerAccess(peer, 0) for peer in (1, 1, 0)]
    here, there = mapped(created(device=0)), mapped(created(device=1), device=1)
    poke(there, 5)
    must(runtime.cudaMemcpyPeerAsync(c_void_p(here), 0, c_void_p(there), 1, c_size_t(4), None))
    tell(can=[[each.value for each in row] for row in can], enabled=enabled, copied=peek(here))


globals()[sys.argv[1]]()
