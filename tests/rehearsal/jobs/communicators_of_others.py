"""A communicator that torch did not make. Arguments: who makes it, and how it ends.

*ctypes*: functions of NCCL that ctypes looks up, as servers do; *library*: a C library linked to NCCL, which is loaded
when the job runs already (LIBRARY).
"""

import ctypes
import os
import sys

import torch
import tracehook

import raw
from common import RANK, WORLD, filled, tell

WHO, END = sys.argv[1:3]
COUNT = 1 << 20  # elements


def known() -> list[dict[str, object]]:
    """Return what tracehook says of the communicators."""
    return [
        {name: row[name] for name in ("key", "rank", "size", "device", "held", "local")}
        for row in tracehook.status()["communicators"]
    ]


class ByLibrary:
    """The same calls as those of `raw.Group`, by a library of its own."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["LIBRARY"])
        self.library.own_init.restype = ctypes.c_void_p
        unique = raw.exchanged("library", self.library.own_id)
        self.comm = ctypes.c_void_p(self.library.own_init(WORLD, ctypes.byref(unique), RANK))

    def all_reduce(self, send: int, receive: int, count: int) -> int:
        """Enqueue an all-reduce on the default stream."""
        pointers = ctypes.c_void_p(send), ctypes.c_void_p(receive)
        return int(self.library.own_sum(*pointers, ctypes.c_size_t(count), self.comm))

    def end(self) -> int:
        """End the communicator."""
        return int(self.library.own_end(self.comm))


torch.cuda.set_device(RANK)
tensor = filled(RANK + 1, 4, f"cuda:{RANK}")
segments = tracehook.status()["segments"]
group = raw.Group() if WHO == "ctypes" else ByLibrary()
tell(made=known(), segments=segments)
more = filled(0, 32, f"cuda:{RANK}")
tell(grown=known())
must = raw.must
must(group.all_reduce(tensor.data_ptr(), tensor.data_ptr(), COUNT))
torch.cuda.synchronize()
tell(sum=float(tensor[0].cpu()))
del more
torch.cuda.empty_cache()
tell(shrunk=known(), attached=tracehook.attach_communicator(group.comm.value or 0, device=RANK))
raw.meet("end")
if isinstance(group, ByLibrary):
    must(group.end())
else:
    must(raw.nccl.ncclCommAbort(group.comm) if END == "abort" else raw.nccl.ncclCommDestroy(group.comm))
tell(left=known())
