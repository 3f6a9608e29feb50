"""Streams that write words of memory and wait for them."""

import ctypes
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_ulonglong, c_void_p

from common import must, tell
from driver import (
    AT_LEAST,
    COMMON_BIT,
    EQUAL,
    NEITHER_BIT,
    NOT_READY,
    UNIT,
    Link,
    Other,
    allocated,
    created,
    cuda,
    exported,
    mapped,
    new_stream,
    peek,
    poke,
    runtime,
    taken,
    wait_word,
    write_word,
)

FLUSH = 1 << 30
ALL = 0xFFFFFFFF
ROUNDS = 200


class Operation(ctypes.Structure):
    """What CUstreamBatchMemOpParams is."""

    _fields_ = (
        ("kind", c_int),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
        ("unused", c_uint64),
    )


WAIT, WRITE, FLUSH_WRITES, WAIT_64, BARRIER = 1, 2, 3, 4, 6


def batch(stream: c_void_p | None, *operations: Operation, flags: int = 0) -> int:
    array = (Operation * len(operations))(*operations)
    return int(cuda.cuStreamBatchMemOp_v2(stream, c_uint(len(operations)), array, c_uint(flags)))


def query(stream: c_void_p) -> int:
    return int(runtime.cudaStreamQuery(stream))


def finish(stream: c_void_p) -> None:
    must(runtime.cudaStreamSynchronize(stream))


def copy(stream: c_void_p, to: int, source: int) -> None:
    must(runtime.cudaMemcpyAsync(c_void_p(to), c_void_p(source), c_size_t(4), 3, stream))


def stays(stream: c_void_p) -> bool:
    """Whether a stream has something to do, and a moment later still."""
    first = query(stream)
    time.sleep(0.02)
    return first == query(stream) == NOT_READY


def host_word() -> ctypes.c_uint32:
    """Return a word of page-locked memory."""
    pointer = c_void_p()
    must(runtime.cudaHostAlloc(byref(pointer), c_size_t(4096), 0))
    return c_uint32.from_address(pointer.value or 0)


def conditions() -> None:
    """Each condition with a word that does not meet it, and then one that does."""
    word, stream = allocated(), new_stream()
    cases = {
        "at least": (AT_LEAST, 5, 4, 5),
        "at least, further on": (AT_LEAST, 5, 4, 9),
        "at least, around the end": (AT_LEAST, ALL - 1, ALL - 3, 3),
        "equal": (EQUAL, 5, 6, 5),
        "a common bit": (COMMON_BIT, 6, 9, 12),
        "neither bit": (NEITHER_BIT, ALL - 4, 4, 8),
        "with a flush": (EQUAL | FLUSH, 5, 6, 5),
    }
    held = {}
    for name, (condition, value, before, after) in cases.items():
        poke(word, before)
        must(wait_word(stream, word, value, condition))
        waits = stays(stream)
        poke(word, after)
        finish(stream)
        must(wait_word(stream, word, value, condition))
        finish(stream)
        held[name] = waits
    tell(held=held)


def order() -> None:
    """A stream that waits: what it does, and what others do meanwhile."""
    words, first, second = allocated(), new_stream(), new_stream()
    flag, source, target, other = words, words + 64, words + 128, words + 192
    event = c_void_p()
    must(runtime.cudaEventCreateWithFlags(byref(event), 2))
    poke(source, 1)
    must(wait_word(first, flag, 1))
    copy(first, target, source)
    must(runtime.cudaEventRecord(event, first))
    copy(second, other, source)
    finish(second)
    tell(waiting=[stays(first), runtime.cudaEventQuery(event), peek(target)], other=[query(second), peek(other)])
    poke(source, 2)
    must(runtime.cudaStreamWaitEvent(second, event, 0))
    must(write_word(second, words + 256, 3))
    third = new_stream()
    must(write_word(third, flag, 1))
    finish(second)
    tell(after=[query(first), runtime.cudaEventQuery(event), peek(target), peek(words + 256)])

    # A batch is one piece of work, in its order.
    must(
        batch(
            first,
            Operation(WRITE, words + 512, 1),
            Operation(BARRIER),
            Operation(WAIT, words + 516, 1, EQUAL),
            Operation(FLUSH_WRITES),
            Operation(WRITE, words + 512, 2),
        )
    )
    must(wait_word(second, words + 512, 1))
    finish(second)
    middle = [peek(words + 512), stays(first)]
    must(write_word(second, words + 516, 1))
    finish(first)
    tell(batch=[middle, peek(words + 512)])

    # The default stream and the streams that it orders.
    blocking = c_void_p()
    must(runtime.cudaStreamCreate(byref(blocking)))
    must(wait_word(None, words + 1024, 1))
    must(write_word(blocking, words + 1028, 1))
    held = stays(blocking)
    must(write_word(second, words + 1024, 1))
    finish(blocking)
    tell(default=[held, peek(words + 1028)])


def by_cpu() -> None:
    """The CPU and a stream take turns, through page-locked memory."""
    mine, theirs, stream = host_word(), host_word(), new_stream()
    addresses = [ctypes.addressof(mine), ctypes.addressof(theirs)]
    took = []
    for turn in range(1, ROUNDS + 1):
        must(wait_word(stream, addresses[0], turn, EQUAL))
        must(write_word(stream, addresses[1], turn))
        time.sleep(0.0005)
        began = time.perf_counter()
        mine.value = turn
        while theirs.value != turn:
            os.sched_yield()
        took.append(time.perf_counter() - began)
    finish(stream)
    tell(turns=theirs.value, median=statistics.median(took))


def processes() -> None:
    """Streams of two processes take turns, and then one waits for long: `used` is the share of that for its CPU."""

    def other_side(link: Link) -> None:
        address = mapped(taken(*link.hear()[1]))
        stream = new_stream()
        for turn in range(1, ROUNDS + 1):
            must(wait_word(stream, address, turn, EQUAL))
            copy(stream, address + 128, address + 64)
            must(write_word(stream, address + 4, turn))
        link.say()
        finish(stream)
        began, before = time.perf_counter(), time.process_time()
        must(wait_word(stream, address, ROUNDS + 1))
        link.say()
        finish(stream)
        link.say((time.process_time() - before) / (time.perf_counter() - began))

    process = Other(other_side)
    handle = created()
    address = mapped(handle)
    process.link.say(None, exported(handle))
    stream = new_stream()
    process.link.hear()
    took, right = [], 0
    for turn in range(1, ROUNDS + 1):
        poke(address + 64, turn)
        began = time.perf_counter()
        must(write_word(stream, address, turn))
        must(wait_word(stream, address + 4, turn))
        finish(stream)
        took.append(time.perf_counter() - began)
        right += peek(address + 128) == turn
    process.link.hear()
    time.sleep(1)
    must(write_word(stream, address, ROUNDS + 1))
    tell(right=right, median=statistics.median(took), used=process.link.hear()[0], status=process.end())


def deserted() -> None:
    """A process that waits for one which is gone, and ends all the same."""

    def writer(link: Link) -> None:
        link.hear()

    process = Other(writer)
    word, stream = allocated(), new_stream()
    os.kill(process.pid, signal.SIGKILL)
    process.end()
    must(wait_word(stream, word, 1))
    tell(waits=stays(stream))


def captured() -> None:
    """A graph of a write, a wait and a copy, launched three times."""
    words, stream, other = allocated(), new_stream(), new_stream()
    started, go, source, target = (words + 64 * index for index in range(4))
    graph, instance = c_void_p(), c_void_p()
    must(runtime.cudaStreamBeginCapture(stream, 0))
    must(write_word(stream, started, 1))
    must(wait_word(stream, go, 1, EQUAL))
    copy(stream, target, source)
    must(batch(stream, Operation(WRITE, go, 0), Operation(WRITE, started, 2)))
    must(runtime.cudaStreamEndCapture(stream, byref(graph)))
    count = c_size_t()
    must(runtime.cudaGraphGetNodes(graph, None, byref(count)))
    must(runtime.cudaGraphInstantiateWithFlags(byref(instance), graph, c_ulonglong(0)))
    tell(nodes=count.value, captured=[peek(started), query(stream)])
    seen = []
    for step in (5, 6, 7):
        must(runtime.cudaGraphLaunch(instance, stream))
        must(wait_word(other, started, 1, EQUAL))
        finish(other)
        waits = stays(stream)
        poke(source, step)
        must(write_word(other, go, 1))
        finish(stream)
        seen.append([waits, peek(target), peek(started), peek(go)])
    tell(seen=seen)


def names() -> None:
    """Every way to the functions."""
    pointer, result, version = c_void_p(), c_int(), 13000
    answer = (byref(pointer), c_ulonglong(0), byref(result))
    with_version = (byref(pointer), version, c_ulonglong(0), byref(result))

    def linked(name: bytes) -> int:
        pointer.value = ctypes.cast(cuda[name.decode()], c_void_p).value
        return 0

    ways: list[Callable[[bytes], int]] = [
        linked,
        lambda name: cuda.cuGetProcAddress(name, byref(pointer), 11030, c_ulonglong(0)),
        lambda name: cuda.cuGetProcAddress_v2(name, *with_version),
        lambda name: runtime.cudaGetDriverEntryPoint(name, *answer),
        lambda name: runtime.cudaGetDriverEntryPointByVersion(name, *with_version),
    ]
    word, stream, done = allocated(), new_stream(), []
    kind = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint32, c_uint)
    for turn, look_up in enumerate(ways, 1):
        for suffix in (b"", b"_v2"):
            for name, flags in ((b"cuStreamWriteValue32", 0), (b"cuStreamWaitValue32", EQUAL)):
                must(look_up(name + suffix))
                must(kind(pointer.value or 0)(stream, word, turn, flags))
            must(look_up(b"cuStreamBatchMemOp" + suffix))
            finish(stream)
            done.append(peek(word) == turn)
    missing = [cuda.cuGetProcAddress_v2(b"cuNoSuch", *with_version), result.value]
    missing += [runtime.cudaGetDriverEntryPoint(b"cuNoSuch", *answer), result.value, pointer.value]
    attributes = [c_int(-1), c_int(-1)]
    for attribute, number in zip(attributes, (122, 123), strict=True):  # 64 bits, "neither bit"
        must(cuda.cuDeviceGetAttribute(byref(attribute), number, 0))
    tell(done=done, missing=missing, attributes=[each.value for each in attributes])


def refused() -> None:
    """Words that are none, conditions that are none, streams that are none."""
    word, stream = allocated(), new_stream()
    gone = new_stream()
    must(runtime.cudaStreamDestroy(gone))
    ordinary = ctypes.addressof(c_uint32())
    tell(
        unaligned=[write_word(stream, word + 2, 1), wait_word(stream, word + 1, 1)],
        ordinary=[write_word(stream, ordinary, 1), wait_word(stream, ordinary, 1)],
        beyond=[write_word(stream, word + UNIT, 1), wait_word(stream, 4096, 1)],
        flags=[write_word(stream, word, 1, 2), wait_word(stream, word, 1, 4)],
        batch=[
            batch(stream, Operation(WRITE, word, 1), Operation(WRITE, word + 2, 1)),
            batch(stream, Operation(9, word)),
            batch(stream, Operation(WRITE, word, 1), flags=1),
            batch(stream, *[Operation(WRITE, word, 1)] * 257),
        ],
        wide=batch(stream, Operation(WAIT_64, word, 1)),
        stream=[write_word(gone, word, 1), wait_word(gone, word, 1)],
        untouched=peek(word),
    )

    def child(link: Link) -> None:
        link.say([write_word(stream, word, 1), wait_word(stream, word, 1)])

    process = Other(child)
    tell(forked=process.link.hear()[0], status=process.end())


globals()[sys.argv[1]]()
