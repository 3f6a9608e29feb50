"""What the management library says, as monitors and schedulers ask it. Argument: what is asked."""

import ctypes
import sys
from ctypes import byref, c_int, c_ubyte, c_uint, c_void_p

import torch

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
nvml.nvmlInit_v2()


def device(number: int) -> c_void_p:
    """Return the handle of a device."""
    found = c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(number, byref(found))
    return found


def name() -> None:
    """Ask for the name of the second device."""
    of, text = device(1), ctypes.create_string_buffer(96)
    tell(
        found=nvml.nvmlDeviceGetName(of, text, len(text)),
        name=text.value.decode(),
        torch=torch.cuda.get_device_name(1),
        short=nvml.nvmlDeviceGetName(of, text, 4),
        nobody=nvml.nvmlDeviceGetName(None, text, len(text)),
    )


def fabric() -> None:
    """Ask for the fabric of the first device: the status and the state; 99 if the state is not written."""
    first = device(0)

    def asked(version: int, handle: c_void_p = first) -> list[int]:
        info = FabricInfo(version=version, state=99)
        return [nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info)), info.state]

    tell(
        second=asked(0x02000024),
        third=asked(0x03000028),
        other=[asked(0x01000024), asked(0x05000024), asked(0)],
        no_device=asked(0x02000024, c_void_p()),
    )


globals()[sys.argv[1]]()
