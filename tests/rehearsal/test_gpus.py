"""What kind of device a rehearsal plays: `tracehook rehearse --gpu`."""

import json
from typing import Any

import pytest
from support.processes import Finished
from support.rehearsal import run_command

from tracehook.rehearsal.gpus import NAMES

ASKS = """
import ctypes, json, torch
properties = torch.cuda.get_device_properties(0)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
memory, major, minor = (ctypes.c_ulonglong * 3)(), ctypes.c_int(), ctypes.c_int()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
nvml.nvmlDeviceGetName(handle, name, 96)
nvml.nvmlDeviceGetMemoryInfo(handle, memory)
nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
print(json.dumps({
    "name": properties.name, "capability": [properties.major, properties.minor],
    "processors": properties.multi_processor_count, "memory": properties.total_memory / 2**30,
    "shared": properties.shared_memory_per_block_optin / 1024, "l2": properties.L2_cache_size / 2**20,
    "threads": properties.max_threads_per_multi_processor, "peers": torch.cuda.can_device_access_peer(0, 1),
    "nvml": [name.value.decode(), memory[0] / 2**30, major.value, minor.value],
}))
"""


ASKED = ("name", "capability", "processors", "memory", "shared", "l2", "threads", "peers")


def rehearse(*options: str) -> Finished:
    """Ask two devices what they are."""
    return run_command("-c", ASKS, devices=2, options=options)


def told(*options: str) -> dict[str, object]:
    """Return what the devices say."""
    finished = rehearse(*options)
    assert finished.status == 0, finished.output
    return dict(json.loads(next(line for line in finished.out.splitlines() if line.startswith("{"))))


@pytest.mark.parametrize(
    ("gpu", "row"),
    [
        ("H200", ("NVIDIA H200", [9, 0], 132, 140, 227, 60, 2048, True)),
        ("l40s", ("NVIDIA L40S", [8, 9], 142, 48, 99, 96, 1536, True)),
        ("RTX4090", ("NVIDIA GeForce RTX 4090", [8, 9], 128, 24, 99, 72, 1536, False)),
    ],
)
def test_torch_and_nvml_say_what_it_is(gpu: str, row: tuple[Any, ...]) -> None:
    """Name, compute capability, multiprocessors, memory and caches; the name in any case."""
    expected = dict(zip(ASKED, row, strict=True))
    assert told("--gpu", gpu) == expected | {"nvml": [expected["name"], expected["memory"], *expected["capability"]]}


def test_without_the_option_it_is_what_it_was() -> None:
    """An H200 with 64 GiB, which says that it is emulated."""
    said = told()
    assert (said["name"], said["memory"], said["capability"]) == ("NVIDIA H200 (emulated)", 64, [9, 0])


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    """In one line, before anything starts."""
    finished = rehearse("--gpu", "H1000")
    assert finished.status == 2
    (line,) = finished.err.splitlines()
    assert line == f"tracehook rehearse: --gpu 'H1000': expected one of {', '.join(NAMES)}; nothing was started"
