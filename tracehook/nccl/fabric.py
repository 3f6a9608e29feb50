"""The NVLink fabric of a device: it joins devices of several hosts (MNNVL). Asked from the driver's NVML.

NCCL takes the devices of one fabric for one domain, whichever hosts they are in, unless ``NCCL_MNNVL_ENABLE=0``.
"""

from __future__ import annotations

import ctypes
import functools
import os

_VERSION_2 = 0x0200_0000
_COMPLETED = 3


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health_mask", ctypes.c_uint),
    )


@functools.cache
def fabric_of(uuid: str) -> str:
    """Return what names the fabric and the clique of a device; empty if it is in none, or if NVML does not tell.

    Args:
        uuid: the device's, as NVML writes it: ``GPU-...``.

    """
    if os.environ.get("NCCL_MNNVL_ENABLE") == "0":
        return ""
    info = _FabricInfo(version=_VERSION_2 | ctypes.sizeof(_FabricInfo))
    device = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        answers = (
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
            or nvml.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
        )
    except (OSError, AttributeError):  # no driver, or one from before fabrics
        return ""
    cluster = bytes(info.cluster)
    if answers or info.status or info.state != _COMPLETED or not any(cluster):
        return ""
    return f"{cluster.hex()}-{info.clique}"
