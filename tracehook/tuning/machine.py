"""What this machine is, as far as a tuning table depends on it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tracehook.tuning.table import Machine
from tracehook.versions import nccl_name


def this_machine(device: int) -> Machine:
    """Return what the process runs on. Imports torch; may make a CUDA context."""
    import torch

    from tracehook import _core

    # Not torch.cuda.nccl.version(), which is the version that torch was compiled with.
    nccl = nccl_name(_core.nccl_version())
    return Machine(torch.cuda.get_device_name(device), nccl, str(torch.__version__), _has_multicast(device))


def _has_multicast(device: int) -> bool:
    if os.environ.get("NCCL_NVLS_ENABLE") == "0":
        return False
    from torch._C import _distributed_c10d as c10d
    from torch._C._autograd import DeviceType

    try:
        return bool(c10d._SymmetricMemory.has_multicast_support(DeviceType.CUDA, device))
    except (AttributeError, RuntimeError):
        return False  # a torch, or a driver, that does not know it


def hosts_of(members: Sequence[int]) -> int:
    """Return on how many hosts these global ranks are, by the launcher's ``LOCAL_WORLD_SIZE``; 1 if it does not say."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not local.isdigit() or int(local) == 0 or not members:
        return 1
    return len({rank // int(local) for rank in members})
