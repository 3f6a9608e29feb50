"""What the management library says of a device's name, as monitors and schedulers ask it."""

import ctypes
from ctypes import byref

import torch

from common import tell

nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(1, byref(device))
tell(
    found=nvml.nvmlDeviceGetName(device, name, len(name)),
    name=name.value.decode(),
    torch=torch.cuda.get_device_name(1),
    short=nvml.nvmlDeviceGetName(device, name, 4),
    nobody=nvml.nvmlDeviceGetName(None, name, len(name)),
)
