"""Memory of cudaMalloc, opened by another process with cudaIpcOpenMemHandle."""

import ctypes
import os
import signal
import sys
import time
from ctypes import byref, c_uint, c_void_p
from pathlib import Path

from common import MB, must, tell
from driver import UNIT, Link, Other, allocated, created, cuda, mapped, nccl, peek, poke, runtime


class Handle(ctypes.Structure):
    """What cudaIpcMemHandle_t is."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


runtime.cudaIpcOpenMemHandle.argtypes = [c_void_p, Handle, c_uint]


def handle_of(pointer: int) -> bytes:
    handle = Handle()
    must(runtime.cudaIpcGetMemHandle(byref(handle), c_void_p(pointer)))
    return bytes(handle)


def handle_status(pointer: int) -> int:
    return int(runtime.cudaIpcGetMemHandle(byref(Handle()), c_void_p(pointer)))


def is_capable(pointer: int) -> bool:
    answer = c_uint()
    must(cuda.cuPointerGetAttribute(byref(answer), 10, ctypes.c_uint64(pointer)))
    return bool(answer.value)


def open_memory(handle: bytes) -> tuple[int, int]:
    pointer = c_void_p()
    status = runtime.cudaIpcOpenMemHandle(ctypes.addressof(pointer), Handle.from_buffer_copy(handle), 1)
    return status, pointer.value or 0


def opened(handle: bytes) -> int:
    status, pointer = open_memory(handle)
    must(status)
    return pointer


def close_memory(pointer: int) -> int:
    return int(runtime.cudaIpcCloseMemHandle(c_void_p(pointer)))


def foreign() -> list[str]:
    """What of the memory of other processes is mapped or open here."""
    own = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    count = sum("tracehook-device-memory" in name for name in own)
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "tracehook-device-memory" in line]
    return ["descriptor"] * (count - 1) + lines


def heard(link: Link) -> bytes:
    said, _ = link.hear()
    assert isinstance(said, str)
    return bytes.fromhex(said)


def twice() -> None:
    """The same handle, opened and closed again and again."""

    def importer(link: Link) -> None:
        base, other = heard(link), heard(link)
        first, second = opened(base), opened(base)
        third = opened(other)
        poke(first + 8, 5)
        seen = peek(first)
        closed = [close_memory(first)]
        still = peek(second + 8)
        closed += [close_memory(second), close_memory(second)]
        reopened = opened(base)
        again = peek(reopened + 8)
        closed += [close_memory(reopened), close_memory(third)]
        free = runtime.cudaFree(opened(other))
        link.say(
            {
                "same": first == second,
                "apart": first != third,
                "seen": [seen, still, again],
                "closed": closed,
                "free": free,
                "left": len(foreign()),
            }
        )

    process = Other(importer)
    pointer, unrelated = allocated(2 * UNIT), allocated()
    poke(pointer, 1)
    handle = handle_of(pointer)
    process.link.say(handle.hex())
    process.link.say(handle_of(unrelated).hex())
    facts, _ = process.link.hear()
    tell(
        importer=facts,
        interior=handle_of(pointer + MB) == handle,
        written=peek(pointer + 8),
        own=open_memory(handle)[0],
        status=process.end(),
    )


def stale() -> None:
    """Handles of memory that is gone."""

    def importer(link: Link) -> None:
        while (said := link.hear()[0]) is not None:
            assert isinstance(said, str)
            link.say(open_memory(bytes.fromhex(said)))

    def dies(link: Link) -> None:
        link.hear()
        link.say(handle_of(allocated()).hex())

    process, ended = Other(importer), Other(dies)

    def opens(handle: bytes) -> int:
        process.link.say(handle.hex())
        answer, _ = process.link.hear()
        assert isinstance(answer, list)
        return int(answer[0])

    pointer = allocated()
    handle = handle_of(pointer)
    must(runtime.cudaFree(pointer))
    freed = opens(handle)
    again = allocated()
    unexported = opens(handle)
    renewed = handle_of(again)
    tell(reused=again == pointer, stale=[freed, unexported, opens(handle)], renewed=opens(renewed))
    process.link.say()
    process.end()
    ended.link.say()
    of_the_dead = heard(ended.link)
    ended.end()
    tell(dead=open_memory(of_the_dead)[0])


def refused() -> None:
    """Memory that has another kind of handle."""
    memory = c_void_p()
    must(nccl.ncclMemAlloc(byref(memory), UNIT))
    of_nccl, of_driver, of_runtime = memory.value or 0, mapped(created()), allocated()
    tell(
        refused=[handle_status(of_nccl), handle_status(of_driver), handle_status(4096)],
        capable=[is_capable(of_nccl), is_capable(of_driver), is_capable(of_runtime)],
    )


def freeing(how: str) -> None:
    """The exporter frees its memory, and the importer does `how` before, or nothing."""

    def importer(link: Link) -> None:
        pointer = opened(heard(link))
        opened(heard(link))
        if how == "forked":
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
        if how in ("closed", "forked"):
            must(close_memory(pointer))
        link.say(child if how == "forked" else None)
        link.hear()

    process = Other(importer)
    pointer, kept = allocated(), allocated()
    process.link.say(handle_of(pointer).hex())
    process.link.say(handle_of(kept).hex())
    child, _ = process.link.hear()
    if how in ("killed", "stopped"):
        os.kill(process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    if how == "killed":
        process.end()
    status = runtime.cudaFree(pointer)
    if isinstance(child, int):
        os.kill(child, signal.SIGKILL)
    tell(status=status, pid=process.pid, memory=f"[{pointer:#x}, {pointer + UNIT:#x})")
    if how == "stopped":
        os.kill(process.pid, signal.SIGCONT)
    if how != "killed":
        process.link.say()
        process.end()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
