"""Communicators that were made by ctypes, as pynccl does: one before tracehook was enabled, and attached, one after."""

import ctypes

import torch
import tracehook

from common import RANK, filled, made_by_hand, must, tell

errors = {}
try:
    tracehook.attach_communicator(1234)
except RuntimeError as problem:
    errors["not_enabled"] = str(problem)
torch.cuda.set_device(0)
nccl, communicator = made_by_hand()
tracehook.enable()
tensors = [filled(RANK + 1, 24, "cuda:0"), filled(1, 24, "cuda:1")]
try:
    tracehook.attach_communicator(0)
except ValueError as problem:
    errors["null"] = str(problem)

first = tracehook.attach_communicator(communicator.value or 0, name="mine")
second = tracehook.attach_communicator(communicator.value or 0, name="mine")
tell(errors=errors, first=first, second=second, status=tracehook.status())
tensors.append(torch.empty(1 << 24, device="cuda:0"))
tell(grown=tracehook.status())
tensors.pop()
torch.cuda.empty_cache()
tell(shrunk=tracehook.status())
count = ctypes.c_size_t(tensors[0].numel())
stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
pointer = ctypes.c_void_p(tensors[0].data_ptr())
must(nccl.ncclAllReduce(pointer, pointer, count, 7, 0, communicator, stream))
torch.cuda.synchronize()
gone = tracehook.detach_communicator(communicator.value or 0)
again = tracehook.detach_communicator(communicator.value or 0)
tell(gone=gone, again=again, detached=tracehook.status()["communicators"])
must(nccl.ncclCommDestroy(communicator))
_, seen = made_by_hand()
tell(needless=tracehook.attach_communicator(seen.value or 0), known=tracehook.status()["communicators"])
must(nccl.ncclCommDestroy(seen))
del tensors
torch.cuda.empty_cache()
