"""What NVML says of the fabric of the first device."""

import ctypes
from ctypes import byref, c_int, c_ubyte, c_uint, c_void_p

from common import tell


class FabricInfo(ctypes.Structure):
    """What nvmlGpuFabricInfoV_t is in version 3."""

    _fields_ = (
        ("version", c_uint),
        ("cluster", c_ubyte * 16),
        ("status", c_int),
        ("clique", c_uint),
        ("state", c_ubyte),
        ("health_mask", c_uint),
        ("health_summary", c_ubyte),
    )


nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = c_void_p()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device))


def asked(version: int, handle: c_void_p = device) -> list[int]:
    """Return the status and the state; 99 if the state is not written."""
    info = FabricInfo(version=version, state=99)
    return [nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info)), info.state]


tell(
    second=asked(0x02000024),
    third=asked(0x03000028),
    other=[asked(0x01000024), asked(0x05000024), asked(0)],
    no_device=asked(0x02000024, c_void_p()),
)
