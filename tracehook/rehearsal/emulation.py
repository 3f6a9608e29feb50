"""The environment of a rehearsal: real PyTorch on emulated CUDA devices and an emulated NCCL."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tracehook import versions
from tracehook.hook import library

_LIBRARIES = ("libcudart_emulated.so", "libnccl.so.2")


class NoEmulation(RuntimeError):
    """This installation has no emulated devices."""


def directory() -> Path:
    """Return the folder of the emulated libraries. Raises :class:`NoEmulation` if they were not built."""
    found = library.directory() / "_emulated"
    missing = [name for name in _LIBRARIES if not (found / name).exists()]
    if missing:
        raise NoEmulation(f"no emulated devices in this installation: {found} lacks {', '.join(missing)}")
    return found


def require_cuda_build() -> None:
    """Raise :class:`NoEmulation` if the torch beside us is a build without CUDA, which sees no emulated device either.

    Does not import torch; a torch that is not found here says nothing, as the rehearsed command may have its own.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    if not (Path(found.origin).parent / "lib" / "libc10_cuda.so").exists():
        version = metadata.version("torch")
        raise NoEmulation(f"torch {version} is a build without CUDA, and sees no emulated device: install a CUDA build")


def environment(devices: int, scratch: Path, faults: str = "", base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `base` changed so that a process and its children see `devices` emulated devices.

    `scratch` is a folder for the rendezvous files, the violations and the summaries of the emulated NCCL.
    """
    libraries = directory()
    out = dict(base)
    out["LD_PRELOAD"] = _before(base.get("LD_PRELOAD", ""), *(str(libraries / name) for name in _LIBRARIES))
    out["LD_LIBRARY_PATH"] = _before(base.get("LD_LIBRARY_PATH", ""), str(libraries))
    out["TRACEHOOK_EMU_DEVICES"] = str(devices)
    out["TRACEHOOK_EMU_DIR"] = str(scratch)
    with contextlib.suppress(metadata.PackageNotFoundError):
        # What the installed torch would bring with it: versions differ in what they do.
        nccl = versions.of_torch(metadata.version("torch")).nccl
        out.setdefault("TRACEHOOK_EMU_NCCL_VERSION", str(nccl))
    # bf16 attention would otherwise choose cuDNN, which is not emulated.
    out.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    if faults:
        out["TRACEHOOK_EMU_FAULTS"] = faults
    return out


def _before(there: str, *first: str) -> str:
    return ":".join([*first, *(part for part in there.split(":") if part and part not in first)])


def violations(scratch: Path) -> list[dict[str, Any]]:
    """Return the broken rules that the processes of a rehearsal left in `scratch`, oldest process first."""
    found = []
    for path in sorted(scratch.glob("violations.*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"rule": "?", "sentence": f"unreadable line in {path.name}"})
    return found
