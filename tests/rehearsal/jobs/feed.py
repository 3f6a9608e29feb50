"""What the feed of segments tells of memory that comes, goes and sleeps. Arguments: libraries of sleeper, listener."""

import ctypes
import gc
import os
import sys

import torch
import tracehook
from tracehook import _core

from common import MB, raised, tell

early = raised(tracehook.subscribe)
tracehook.enable()
device = torch.device("cuda", 0)
feed = tracehook.subscribe()  # CUDA is not up yet
tell(early=early, at_first=[list(change) for change in feed.changes()])

# One comes, goes, and another one has its address.
first = torch.empty(32 * MB, dtype=torch.uint8, device=device)
address = first.data_ptr()
del first
torch.cuda.empty_cache()
second = torch.empty(32 * MB, dtype=torch.uint8, device=device)
tell(reused=second.data_ptr() == address, lives=[list(change) for change in feed.changes()], second=address)

# The memory sleeps and wakes; a C library listens, too, and a second listener comes while it sleeps.
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # they are not linked to it
sleeper, listener = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
native = ctypes.CDLL(_core.__file__)
native.tracehook_subscribe.restype = ctypes.c_uint64
native.tracehook_unsubscribe.argtypes = [ctypes.c_uint64]
subscription = native.tracehook_subscribe(listener.listen, None)
pool = torch.cuda.MemPool(
    torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "sleeper_malloc", "sleeper_free").allocator()
)
with torch.cuda.use_mem_pool(pool):
    kept = torch.empty(24 * MB, dtype=torch.uint8, device=device)
sleeper.fall_asleep()
with tracehook.subscribe() as late:
    tell(late=[list(change) for change in late.changes()])
sleeper.wake_up()
sleeper.fall_asleep()
del kept, pool
gc.collect()
torch.cuda.empty_cache()
tell(sleeps=[list(change) for change in feed.changes()])
native.tracehook_unsubscribe(subscription)
told = listener.heard_count()
listener.heard_id.restype = ctypes.c_uint64
tell(native=[(listener.heard_what(i), listener.heard_id(i), listener.heard_with_memory(i)) for i in range(told)])
feed.close()
feed.close()
del second
torch.cuda.empty_cache()
child = os.fork()
if child == 0:
    os._exit(3 if raised(tracehook.subscribe).startswith("RuntimeError") else 0)
tell(
    after=[len(feed.changes()), listener.heard_count() - told],
    in_a_child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
)
