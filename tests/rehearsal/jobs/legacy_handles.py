"""Two ranks share a tensor of torch by legacy IPC handles that a library asks for. Argument: that library."""

import ctypes
import sys

import torch
import torch.distributed as dist

from common import RANK, filled, start, tell

device = start()
library = ctypes.CDLL(sys.argv[1])
tensor = filled(RANK + 1, 32, device)
torch.cuda.synchronize()
handle, address, value = ctypes.create_string_buffer(64), ctypes.c_void_p(), ctypes.c_float()
gave = library.give(ctypes.c_void_p(tensor.data_ptr()), handle)
handles: list[bytes] = [b""] * 2
dist.all_gather_object(handles, handle.raw)
took = library.take(handles[1 - RANK], ctypes.byref(address))
read = library.read_float(address, ctypes.byref(value)) if took == 0 else -1
dist.barrier()
left = library.leave(address) if took == 0 else -1
tell(statuses=[gave, took, read, left], value=value.value)
dist.destroy_process_group()
