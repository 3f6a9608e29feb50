"""NCCL and CUDA by ctypes, without torch: one communicator of all ranks, and memory for its windows."""

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
MB = 1 << 20
FLOAT, DOUBLE = 7, 8
SUM, MAX = 0, 2
SYMMETRIC = 1

nccl = ctypes.CDLL("libnccl.so.2")
cuda = ctypes.CDLL(None)
cuda.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
cuda.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
nccl.ncclMemAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
nccl.ncclMemFree.argtypes = [ctypes.c_void_p]


class UniqueId(ctypes.Structure):
    """What ncclUniqueId is."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


class Config(ctypes.Structure):
    """What ncclConfig_t was when it had one field of interest."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


nccl.ncclCommInitRankConfig.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int, ctypes.c_void_p]


def tell(**facts: object) -> None:
    """Say something that the test reads back with `Rehearsal.facts`."""
    os.write(1, f"fact {RANK} {json.dumps(facts)}\n".encode())


def must(result: int) -> None:
    """End the job if NCCL's or CUDA's answer is no success."""
    if result:
        raise SystemExit(f"rank {RANK}: result {result}")


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():
        time.sleep(0.01)


def exchanged(name: str, make: Callable[[object], int]) -> UniqueId:
    """Return the id that rank 0 makes, on all ranks."""
    path = Path(f"{os.environ['TEST_STORE']}.{name}.id")
    if RANK == 0:
        unique = UniqueId()
        must(make(ctypes.byref(unique)))
        path.with_suffix(".part").write_bytes(bytes(unique))
        path.with_suffix(".part").rename(path)
    until(path.exists)
    return UniqueId.from_buffer_copy(path.read_bytes())


def meet(name: str) -> None:
    """Wait until all ranks are here, without a communicator."""
    base = os.environ["TEST_STORE"]
    Path(f"{base}.{name}.{RANK}").touch()
    until(lambda: all(Path(f"{base}.{name}.{rank}").exists() for rank in range(WORLD)))


def allocate(size_mb: float, value: float = 0.0) -> int:
    """Return memory of ncclMemAlloc that begins with 4096 floats of `value`."""
    memory = ctypes.c_void_p()
    must(nccl.ncclMemAlloc(ctypes.byref(memory), int(size_mb * MB)))
    assert memory.value is not None
    write(memory.value, value)
    return memory.value


def write(memory: int, value: float, count: int = 4096) -> None:
    """Make the first floats of `memory` equal `value`."""
    floats = (ctypes.c_float * count)(*[value] * count)
    must(cuda.cudaMemcpy(memory, ctypes.addressof(floats), count * 4, 1))


def read(memory: int, *indices: int) -> list[float]:
    """Return these floats of `memory`, when all work is done."""
    must(cuda.cudaDeviceSynchronize())
    values = []
    for index in indices:
        value = ctypes.c_float()
        must(cuda.cudaMemcpy(ctypes.addressof(value), memory + 4 * index, 4, 2))
        values.append(value.value)
    return values


class Group:
    """The communicator of all ranks, each on the device that its launcher gave it."""

    def __init__(self, name: str = "first", blocking: bool = True) -> None:
        must(cuda.cudaSetDevice(int(os.environ["LOCAL_RANK"])))
        unique = exchanged(name, nccl.ncclGetUniqueId)
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22809, int(blocking))
        self.comm = ctypes.c_void_p()
        result = nccl.ncclCommInitRankConfig(ctypes.byref(self.comm), WORLD, unique, RANK, ctypes.addressof(config))
        must(0 if result == 7 else result)
        self.ready()

    def ready(self) -> int:
        """Wait while the communicator is in progress; return its error."""
        error = ctypes.c_int(7)
        while error.value == 7:
            must(nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(error)))
            time.sleep(0.005)
        return error.value

    def window(self, memory: int, size_mb: float, flags: int = SYMMETRIC) -> ctypes.c_void_p:
        """Register a window; the result is `self.result`."""
        window = ctypes.c_void_p(1)
        self.result = nccl.ncclCommWindowRegister(
            self.comm, ctypes.c_void_p(memory), ctypes.c_size_t(int(size_mb * MB)), ctypes.byref(window), flags
        )
        return window

    def drop(self, window: ctypes.c_void_p) -> int:
        """Deregister a window."""
        return int(nccl.ncclCommWindowDeregister(self.comm, window))

    def make_device_communicator(self) -> ctypes.Array[ctypes.c_char]:
        """Create a device communicator; the result is `self.result`. Emulated, nothing of what is given is read."""
        made, requirements = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(1024)
        self.result = nccl.ncclDevCommCreate(self.comm, requirements, made)
        return made

    def drop_device_communicator(self, made: ctypes.Array[ctypes.c_char]) -> int:
        """Destroy a device communicator."""
        return int(nccl.ncclDevCommDestroy(self.comm, made))

    def all_reduce(
        self, send: int, receive: int, count: int = 1024, type_: int = FLOAT, op: int = SUM, stream: int = 0
    ) -> int:
        """Enqueue an all-reduce on a stream."""
        pointers = ctypes.c_void_p(send), ctypes.c_void_p(receive)
        where = self.comm, ctypes.c_void_p(stream)
        return int(nccl.ncclAllReduce(*pointers, ctypes.c_size_t(count), type_, op, *where))

    def all_gather(self, send: int, receive: int, count: int = 1024) -> int:
        """Enqueue an all-gather on the default stream."""
        pointers = ctypes.c_void_p(send), ctypes.c_void_p(receive)
        return int(nccl.ncclAllGather(*pointers, ctypes.c_size_t(count), FLOAT, self.comm, None))

    def reduce_scatter(self, send: int, receive: int, count: int = 1024) -> int:
        """Enqueue a reduce-scatter on the default stream."""
        pointers = ctypes.c_void_p(send), ctypes.c_void_p(receive)
        return int(nccl.ncclReduceScatter(*pointers, ctypes.c_size_t(count), FLOAT, SUM, self.comm, None))

    def destroy(self) -> None:
        """End the communicator."""
        must(nccl.ncclCommDestroy(self.comm))

    def abort(self) -> None:
        """End the communicator without the others."""
        must(nccl.ncclCommAbort(self.comm))

    def abort_soon_after(self, call: str) -> None:
        """Let a thread abort it 0.3 s after this rank's first such call, which waits for the other rank by then."""

        def wait_and_abort() -> None:
            until(lambda: nccl.emu_nccl_call_count(call.encode()) > 0)
            time.sleep(0.3)
            self.abort()

        threading.Thread(target=wait_and_abort).start()
