"""A library in C calls NCCL in a way that no code in Python can. Argument: which.

*group*: it makes two communicators in one group, and their handles are variables of its own functions. *end*: it sends
and receives once more, and ends its communicators, when the program's threads have ended. *lock*: it calls NCCL with
Python's lock, while another thread leaves scopes.
"""

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import tracehook

import raw
from common import RANK, WORLD, start, tell

WHICH = sys.argv[1]
library = (ctypes.PyDLL if WHICH == "lock" else ctypes.CDLL)(os.environ["LIBRARY"])
library.own_init.restype = ctypes.c_void_p
device = start()


def make_two() -> list[int]:
    """Return the library's communicators, made in one group."""
    ids = [raw.exchanged(name, library.own_id) for name in ("one", "two")]
    raw.must(raw.nccl.ncclGroupStart())
    made = [library.own_init(WORLD, ctypes.byref(each), RANK) for each in ids]
    raw.must(raw.nccl.ncclGroupEnd())
    return made


if WHICH == "lock":
    tensor = torch.ones(1024, device=device)
    dist.all_reduce(tensor)
    stream = torch.cuda.Stream()
    comm = dist.group.WORLD._get_backend(device)._comm_ptr()

    def call_often() -> None:
        """Make as many calls on all ranks; each waits at the fence of a scope that another thread leaves."""
        torch.cuda.set_device(device)
        for _ in range(1000):
            pointer = ctypes.c_void_p(tensor.data_ptr())
            raw.must(library.own_sum_on(pointer, pointer, ctypes.c_size_t(1024), ctypes.c_void_p(comm),
                                        ctypes.c_void_p(stream.cuda_stream)))  # fmt: skip
            time.sleep(0.001)

    caller = threading.Thread(target=call_often)
    caller.start()
    kept = []
    for number in range(6):
        with tracehook.symmetric():
            kept.append(torch.empty((2 << 20) * (number + 1), dtype=torch.uint8, device=device))
    caller.join()
    tell(symmetric=[tracehook.is_symmetric(each) for each in kept])
else:
    made = make_two()
    known = {row["pointer"]: row["size"] for row in tracehook.status()["communicators"]}
    tell(sizes=[known.get(each) for each in made], known=len(known))
    if WHICH == "group":
        raw.must(max(library.own_end(ctypes.c_void_p(each)) for each in made))
    else:
        buffer = torch.zeros(4096, device=device)
        library.leave_late(*(ctypes.c_void_p(each) for each in (*made, buffer.data_ptr())), 1 - RANK)
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
