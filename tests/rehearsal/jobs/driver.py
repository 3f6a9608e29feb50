"""CUDA's driver and runtime by ctypes, and a second process to share memory with."""

import ctypes
import json
import os
import socket
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_ulonglong, c_void_p
from pathlib import Path

from common import MB, must

UNIT = 2 * MB
DESCRIPTOR, FABRIC = 1, 8
READ, READ_WRITE = 1, 3
INVALID_VALUE, NOT_INITIALIZED, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED = 1, 3, 400, 600, 801
AT_LEAST, EQUAL, COMMON_BIT, NEITHER_BIT = range(4)

cuda = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL(None)
nccl = ctypes.CDLL("libnccl.so.2")
runtime.cudaMemcpy.argtypes = [c_void_p, c_void_p, c_size_t, c_int]
runtime.cudaMalloc.argtypes = [c_void_p, c_size_t]
runtime.cudaFree.argtypes = [c_void_p]
nccl.ncclMemAlloc.argtypes = [c_void_p, c_size_t]
nccl.ncclMemFree.argtypes = [c_void_p]
cuda.cuMemImportFromShareableHandle.argtypes = [c_void_p, c_void_p, c_int]


class Properties(ctypes.Structure):
    """What CUmemAllocationProp is."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("unused", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """What CUmemAccessDesc is."""

    _fields_ = (("location_type", c_int), ("location", c_int), ("access", c_int))


def created(size: int = UNIT, handle_types: int = DESCRIPTOR, device: int = 0) -> c_uint64:
    """Return a handle of new memory."""
    handle = c_uint64()
    properties = Properties(1, handle_types, 1, device)
    must(cuda.cuMemCreate(byref(handle), c_size_t(size), byref(properties), c_ulonglong(0)))
    return handle


def mapped(handle: c_uint64, size: int = UNIT, access: int = READ_WRITE, device: int = 0) -> int:
    """Return new addresses where the memory is mapped; `access` 0 leaves it as mapping does."""
    address = c_uint64()
    must(cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_ulonglong(0)))
    must(cuda.cuMemMap(address, c_size_t(size), c_size_t(0), handle, c_ulonglong(0)))
    if access:
        allowed = Access(1, device, access)
        must(cuda.cuMemSetAccess(address, c_size_t(size), byref(allowed), c_size_t(1)))
    return address.value


def unmapped(address: int, size: int = UNIT) -> None:
    """Take the mapping and the addresses away."""
    must(cuda.cuMemUnmap(c_uint64(address), c_size_t(size)))
    must(cuda.cuMemAddressFree(c_uint64(address), c_size_t(size)))


def export(handle: c_uint64, kind: int = DESCRIPTOR) -> tuple[int, int]:
    """Return the status and the file descriptor of an export."""
    descriptor = c_int(-1)
    status = cuda.cuMemExportToShareableHandle(byref(descriptor), handle, kind, c_ulonglong(0))
    return status, descriptor.value


def exported(handle: c_uint64) -> int:
    """Return a file descriptor of the memory."""
    status, descriptor = export(handle)
    must(status)
    return descriptor


def export_fabric(handle: c_uint64) -> tuple[int, bytes]:
    """Return the status and the 64 bytes of an export as a fabric handle."""
    shared = (ctypes.c_ubyte * 64)()
    status = cuda.cuMemExportToShareableHandle(byref(shared), handle, FABRIC, c_ulonglong(0))
    return status, bytes(shared)


def take_fabric(shared: bytes) -> tuple[int, c_uint64]:
    """Return the status and the handle of an import of a fabric handle."""
    handle = c_uint64()
    return cuda.cuMemImportFromShareableHandle(byref(handle), ctypes.c_char_p(shared), FABRIC), handle


def take(descriptor: int, kind: int = DESCRIPTOR) -> tuple[int, c_uint64]:
    """Return the status and the handle of an import."""
    handle = c_uint64()
    return cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), kind), handle


def taken(descriptor: int) -> c_uint64:
    """Return the handle of imported memory, and close the descriptor."""
    status, handle = take(descriptor)
    must(status)
    os.close(descriptor)
    return handle


def retained(address: int) -> c_uint64:
    """Return the handle of what is mapped at an address."""
    handle = c_uint64()
    must(cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(address)))
    return handle


def allocated(size: int = UNIT) -> int:
    """Return memory of cudaMalloc."""
    pointer = c_void_p()
    must(runtime.cudaMalloc(byref(pointer), size))
    return pointer.value or 0


def extent(address: int) -> list[int]:
    """Return how far behind the base of its memory an address is, and the size of that memory."""
    base, size = c_uint64(), c_size_t()
    must(cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(address)))
    return [address - base.value, size.value]


def poke(address: int, value: int) -> None:
    """Write a word as a copy does, and wait for it."""
    word = c_uint32(value)
    must(runtime.cudaMemcpy(address, ctypes.addressof(word), 4, 1))


def peek(address: int) -> int:
    """Read a word as a copy does."""
    word = c_uint32()
    must(runtime.cudaMemcpy(ctypes.addressof(word), address, 4, 2))
    return word.value


def used() -> int:
    """Return how many bytes of the current device are used."""
    free, total = c_size_t(), c_size_t()
    must(runtime.cudaMemGetInfo(byref(free), byref(total)))
    return total.value - free.value


def new_stream() -> c_void_p:
    """Return a stream that waits for no other."""
    stream = c_void_p()
    must(runtime.cudaStreamCreateWithFlags(byref(stream), 1))
    return stream


def write_word(stream: c_void_p | None, address: int, value: int, flags: int = 0) -> int:
    """Let a stream write a word; return the status."""
    return int(cuda.cuStreamWriteValue32_v2(stream, c_uint64(address), c_uint32(value), c_uint(flags)))


def wait_word(stream: c_void_p | None, address: int, value: int, condition: int = AT_LEAST) -> int:
    """Let a stream wait for a word; return the status."""
    return int(cuda.cuStreamWaitValue32_v2(stream, c_uint64(address), c_uint32(value), c_uint(condition)))


def left() -> list[str]:
    """Return what this process has mapped or open of memory that processes share."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [line for line in lines + files if "tracehook-shareable" in line]


class Other:
    """A process that runs `body(link)` with the other end of a link, forked before either used CUDA."""

    def __init__(self, body: Callable[["Link"], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            status = 1
            try:
                body(Link(theirs))
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self.link = Link(ours)

    def end(self) -> int:
        """Wait for its end; return the status, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Link:
    """One end between two processes: what was said, with file descriptors."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def say(self, what: object = None, *descriptors: int) -> None:
        """Say something to the other process; descriptors of it are closed here."""
        socket.send_fds(self._end, [json.dumps(what).encode()], list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def hear(self) -> tuple[object, list[int]]:
        """Return what the other process said, and the descriptors that came with it. End the job if it is gone."""
        text, descriptors, _, _ = socket.recv_fds(self._end, 65536, 4)
        if not text:
            raise SystemExit("the other process is gone")
        return json.loads(text), descriptors
