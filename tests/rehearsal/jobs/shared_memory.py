"""Memory with handles, given from one process to another."""

import ctypes
import os
import signal
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_void_p

from common import MB, must, tell
from driver import (
    DESCRIPTOR,
    FABRIC,
    UNIT,
    Link,
    Other,
    Properties,
    created,
    cuda,
    export,
    export_fabric,
    exported,
    extent,
    left,
    mapped,
    nccl,
    peek,
    poke,
    retained,
    runtime,
    take,
    take_fabric,
    taken,
    unmapped,
    used,
)

PIDFD_GETFD = 438


class Attributes(ctypes.Structure):
    """What cudaPointerAttributes is."""

    _fields_ = (("type", c_int), ("device", c_int), ("pointers", c_void_p * 2), ("reserved", ctypes.c_long * 8))


def looks(address: int) -> list[int]:
    """Type and device of an address, as the runtime has it and as the driver has it."""
    attributes, kind, ordinal = Attributes(), c_int(), c_int()
    must(runtime.cudaPointerGetAttributes(byref(attributes), c_void_p(address)))
    must(cuda.cuPointerGetAttribute(byref(kind), 2, ctypes.c_uint64(address)))
    must(cuda.cuPointerGetAttribute(byref(ordinal), 9, ctypes.c_uint64(address)))
    return [attributes.type, attributes.device, kind.value, ordinal.value]


def fabric() -> None:
    """Given by 64 bytes, without a descriptor."""

    def importer(link: Link) -> None:
        shared = bytes(link.hear()[0])  # type: ignore[call-overload]  # a list of bytes
        status, handle = take_fabric(shared)
        must(status)
        address = mapped(handle)
        must(cuda.cuMemRelease(handle))
        properties = Properties()
        must(cuda.cuMemGetAllocationPropertiesFromHandle(byref(properties), retained(address)))
        seen = peek(address)
        poke(address, 9)
        link.say()
        link.hear()
        link.say(
            {"seen": seen, "types": properties.handle_types, "stale": take_fabric(shared)[0], "kept": peek(address)}
        )

    other = Other(importer)
    handle, both = created(handle_types=FABRIC), created(handle_types=FABRIC | DESCRIPTOR)
    address = mapped(handle)
    poke(address, 7)
    status, shared = export_fabric(handle)
    must(status)
    other.link.say(list(shared))
    other.link.hear()
    tell(
        written=peek(address),
        descriptor=export(handle)[0],
        both=[export(both)[0], export_fabric(both)[0]],
        foreign=take_fabric(b"x" * 64)[0],
    )
    unmapped(address)
    must(cuda.cuMemRelease(handle))
    other.link.say()
    tell(importer=other.link.hear()[0], status=other.end())


def given() -> None:
    """Made by one process on device 1, used by another whose device is 0."""

    def importer(link: Link) -> None:
        handle = taken(*link.hear()[1])
        address = mapped(handle, 2 * UNIT)
        seen = [peek(address), peek(address + UNIT + 4)]
        again = retained(address + UNIT)
        properties = Properties()
        must(cuda.cuMemGetAllocationPropertiesFromHandle(byref(properties), again))
        poke(address + 8, 11)
        facts = {
            "seen": seen,
            "extent": extent(address + UNIT + 4),
            "looks": looks(address + 4),
            "same_handle": again.value == handle.value,
            "properties": [properties.handle_types, properties.location],
            "held": len(left()),
        }
        must(cuda.cuMemRelease(handle))
        must(cuda.cuMemRelease(again))
        still = peek(address)
        unmapped(address, 2 * UNIT)
        link.say(facts | {"mapped_only": still, "left": left(), "stale": cuda.cuMemRelease(handle)})

    other = Other(importer)
    handle = created(2 * UNIT, device=1)
    address = mapped(handle, 2 * UNIT)
    poke(address, 7)
    poke(address + UNIT + 4, 9)
    other.link.say(None, exported(handle))
    facts, _ = other.link.hear()
    tell(importer=facts, status=other.end(), written=peek(address + 8))
    must(cuda.cuMemRelease(handle))
    unmapped(address, 2 * UNIT)
    tell(left=left())


def fetched() -> None:
    """The descriptor is not sent: the importer takes it out of the exporter."""

    def exporter(link: Link) -> None:
        handle = created()
        poke(mapped(handle), 5)
        link.say(exported_number := exported(handle))
        link.hear()
        os.close(exported_number)

    other = Other(exporter)
    number, _ = other.link.hear()
    process = os.pidfd_open(other.pid)
    descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, number, 0)
    address = mapped(taken(descriptor))
    tell(seen=peek(address), inheritable=os.get_inheritable(process))
    other.link.say()
    tell(status=other.end())


def elsewhere() -> None:
    """An importer that sees one of the two devices only."""

    def importer(link: Link) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        _, (first, second) = link.hear()
        link.say([take(first)[0], looks(mapped(taken(second)))])

    other = Other(importer)
    other.link.say(None, exported(created(device=0)), exported(created(device=1)))
    said, _ = other.link.hear()
    assert isinstance(said, list)
    tell(invisible=said[0], looks=said[1], status=other.end())


def of_nccl() -> None:
    """Memory of ncclMemAlloc, freed by its maker while another process has it."""

    def importer(link: Link) -> None:
        address = mapped(taken(*link.hear()[1]), 2 * UNIT)
        first = peek(address + 3 * MB - 4)
        link.say()
        link.hear()
        link.say([first, peek(address + 3 * MB - 4)])

    other = Other(importer)
    memory = c_void_p()
    must(nccl.ncclMemAlloc(byref(memory), 3 * MB))
    address = memory.value or 0
    poke(address + 3 * MB - 4, 6)
    handle = retained(address + MB)
    other.link.say(None, exported(handle))
    must(cuda.cuMemRelease(handle))
    other.link.hear()
    before = used()
    must(nccl.ncclMemFree(address))
    must(nccl.ncclMemAlloc(byref(memory), 3 * MB))
    again = memory.value or 0
    tell(extent=extent(again + 5), fresh=peek(again + 3 * MB - 4), reused=again == address, used=[before, used()])
    other.link.say()
    tell(seen=other.link.hear()[0], status=other.end())


def exporter_killed() -> None:
    """What an importer has outlives the exporter's SIGKILL, and goes with the importer."""

    def exporter(link: Link) -> None:
        handle = created()
        poke(mapped(handle), 8)
        link.say(None, exported(handle))
        link.hear()

    other = Other(exporter)
    address = mapped(handle := taken(*other.link.hear()[1]))
    os.kill(other.pid, signal.SIGKILL)
    status = other.end()
    seen = peek(address)
    poke(address, 9)
    tell(status=status, seen=[seen, peek(address)])
    unmapped(address)
    must(cuda.cuMemRelease(handle))
    tell(left=left())


def importer_killed() -> None:
    """An importer that is killed takes nothing with it, and leaves nothing."""

    def importer(link: Link) -> None:
        mapped(taken(*link.hear()[1]))
        link.say()
        link.hear()

    other = Other(importer)
    handle = created()
    address = mapped(handle)
    poke(address, 4)
    other.link.say(None, exported(handle))
    other.link.hear()
    os.kill(other.pid, signal.SIGKILL)
    tell(status=other.end(), seen=peek(address))
    unmapped(address)
    must(cuda.cuMemRelease(handle))
    tell(left=left(), used=used())


def forked() -> None:
    """A child that is forked while memory is shared has nothing of it, whatever it does."""
    handle = created()
    address = mapped(handle)
    poke(address, 2)

    def child(link: Link) -> None:
        status = cuda.cuMemCreate(byref(ctypes.c_uint64()), c_size_t(UNIT), byref(Properties(1, 1, 1, 0)), 0)
        remains = left()
        own = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        grandchild = os.fork()
        if grandchild == 0:
            for descriptor in own:
                os.fstat(descriptor)
            os._exit(0)
        link.say([status, remains, os.waitpid(grandchild, 0)[1]])
        link.hear()

    # Threads that make and end memory meanwhile: the child must not find a lock held.
    going = threading.Event()

    def busy() -> None:
        while not going.is_set():
            must(cuda.cuMemRelease(created()))

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = [Other(child) for _ in range(20)]
    heard = [each.link.hear()[0] for each in children]
    going.set()
    for thread in threads:
        thread.join()
    for each in children:
        each.link.say()
    tell(heard=heard, ends=[each.end() for each in children], seen=peek(address))


globals()[sys.argv[1]]()
