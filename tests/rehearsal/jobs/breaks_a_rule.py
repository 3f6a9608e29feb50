"""Registers a range, and ends the communicator without undoing it."""

import ctypes

import torch

from common import made_by_hand, must

memory = torch.empty(1 << 21, dtype=torch.uint8, device="cuda")
nccl, communicator = made_by_hand()
size, handle = ctypes.c_size_t(1 << 21), ctypes.c_void_p()
must(nccl.ncclCommRegister(communicator, ctypes.c_void_p(memory.data_ptr()), size, ctypes.byref(handle)))
must(nccl.ncclCommDestroy(communicator))
