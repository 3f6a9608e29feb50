"""A communicator of one rank grows by another, is suspended and resumed; by hand, as torch has it from 2.15 on."""

import base64
import ctypes
import os
from ctypes import byref, c_int, c_void_p

import torch
import torch.distributed as dist

from common import RANK, UniqueId, made_by_hand, must, tell

torch.cuda.init()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
store = dist.FileStore(os.environ["TEST_STORE"], 2)
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclCommGrow.argtypes = [c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p]
unique, grown = UniqueId(), c_void_p()
if RANK == 0:
    _, small = made_by_hand()
    must(nccl.ncclCommGetUniqueId(small, byref(unique)))
    store.set("id", base64.b64encode(bytes(unique)))
    tell(fewer=nccl.ncclCommGrow(small, 1, byref(unique), -1, byref(grown), None))
    must(nccl.ncclCommGrow(small, 2, byref(unique), -1, byref(grown), None))
else:
    unique = UniqueId.from_buffer_copy(base64.b64decode(store.get("id")))
    must(nccl.ncclCommGrow(None, 2, byref(unique), 1, byref(grown), None))
    tell(nothing=nccl.ncclCommGrow(None, 2, None, 1, byref(c_void_p()), None))


def asked(name: str) -> int:
    """Return what NCCL says of the new communicator."""
    answer = c_int(-1)
    must(getattr(nccl, name)(grown, byref(answer)))
    return answer.value


def reduced() -> int:
    """Return the result of a collective on it."""
    ones = torch.ones(4).cuda()
    at = c_void_p(ones.data_ptr())
    status = nccl.ncclAllReduce(at, at, ctypes.c_size_t(4), 7, 0, grown, None)
    torch.cuda.synchronize()
    return status if status else int(ones.cpu()[0].item()) * 100


tell(ranks=asked("ncclCommCount"), rank=asked("ncclCommUserRank"), sum=reduced())
store.add("met", 1)
while store.add("met", 0) < 2:
    pass
must(nccl.ncclCommSuspend(grown, 1))
suspended = reduced()
must(nccl.ncclCommResume(grown))
tell(suspended=suspended, twice=nccl.ncclCommResume(grown), resumed=reduced())
must(nccl.ncclCommDestroy(grown))
if RANK == 0:
    must(nccl.ncclCommDestroy(small))
