"""What this process knows of itself that known bugs depend on; one line at its start for each that bears on the job."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracehook import known
from tracehook.hook import registration
from tracehook.log.stderr import warn
from tracehook.log.text import encodable
from tracehook.settings import Settings
from tracehook.versions import nccl_name

_DRIVER = Path("/proc/driver/nvidia/version")
_NETWORK = Path("/sys/class/infiniband")
_OF_TORCHRUN = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE")
_TOLD = ("NCCL_", "TORCH_NCCL_", "TORCH_DIST_USE_NCCL2", "TORCH_DISTRIBUTED_DEBUG", *_OF_TORCHRUN)
_MOST = 100  # settings in the log
_LONGEST = 200  # characters of one


def surroundings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what the first line of the log says of the machine and of NCCL's settings."""
    told = [f"{name}={value}"[:_LONGEST] for name, value in sorted(environment.items()) if name.startswith(_TOLD)]
    return {
        "machine": platform.machine(),
        "driver": _driver(),
        "infiniband": _has_network(),
        "nccl_settings": [encodable(text) for text in told[:_MOST]],
    }


def allocator_settings(environment: Mapping[str, str]) -> str:
    """Return the settings of torch's allocator, from the older variable and the newer one."""
    names = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    return ",".join(filter(None, (environment.get(name) for name in names)))


def facts(
    config: Settings, torch_version: str, nccl: int, environment: Mapping[str, str] = os.environ
) -> known.JobFacts:
    """Return what is known before the job makes its first call; `nccl`: 22809 is 2.28.9, 0 is not known."""
    here = registration.ranks_of_host(environment)
    versions = {"torch": torch_version, "nccl": nccl_name(nccl) if nccl else None, "driver": _driver()}
    settings = allocator_settings(environment)
    traits = {
        "several_hosts": None if here is None else here == 0,
        "infiniband": _has_network(),
        "aarch64": platform.machine() == "aarch64",
        "expandable": "expandable_segments:True" in settings,
        "registered": _registers(config, here),
        "sleeps": True if "torch_memory_saver" in environment.get("LD_PRELOAD", "") else None,
    }
    return known.JobFacts(
        {name: text for name, text in versions.items() if text},
        {name: holds for name, holds in traits.items() if holds is not None},
        environment=environment,
    )


def warn_of_dangers(config: Settings, torch_version: str, nccl: int) -> None:
    """Name, on one process of the job, the dangerous bugs that bear on it for certain."""
    if os.environ.get("RANK", "0") != "0":
        return
    for found in known.bearing_on(facts(config, torch_version, nccl)):
        if found.bug.is_dangerous and found.bug.is_of_versions and not found.if_also:
            warn(sentence(found))


def sentence(found: known.Bearing) -> str:
    """Say which bug bears on this job, why, and what helps."""
    bug = found.bug
    return f"{bug.name} bears on this job ({', '.join(found.because)}): {bug.what} {bug.remedy} {bug.source}"


def _registers(config: Settings, ranks_of_host: int | None) -> bool:
    inside = config.local in ("auto", "own") and config.memory == "vmm" and ranks_of_host != 0
    return config.local == "all" or inside


def _driver() -> str | None:
    try:
        found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", _DRIVER.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[0] if found else None


def _has_network() -> bool:
    try:
        return any(_NETWORK.iterdir())
    except OSError:
        return False
