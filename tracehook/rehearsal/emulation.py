"""The environment of a rehearsal: real PyTorch on emulated CUDA devices and an emulated NCCL."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tracehook import versions
from tracehook.hook import library
from tracehook.rehearsal import values

_DEVICES = "TRACEHOOK_EMU_DEVICES"
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


def is_emulated() -> bool:
    """Whether this process sees emulated devices."""
    return _DEVICES in os.environ


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
    out[_DEVICES] = str(devices)
    out["TRACEHOOK_EMU_DIR"] = str(scratch)
    with contextlib.suppress(metadata.PackageNotFoundError):
        # What the installed torch would bring with it: versions differ in what they do.
        nccl = versions.of_torch(metadata.version("torch")).nccl
        out.setdefault("TRACEHOOK_EMU_NCCL_VERSION", str(nccl))
    out.setdefault(values.VARIABLE, str(values.DEFAULT))
    # PyTorch from 2.15 on takes kernels of Triton for some operations, which compute nothing here.
    # With this, PyTorch takes its own.
    out.setdefault("TORCH_DISABLE_NATIVE_JIT", "1")
    # bf16 attention would otherwise choose cuDNN, which is not emulated.
    out.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    out |= _of_compilers(base, str(libraries))
    if faults:
        out["TRACEHOOK_EMU_FAULTS"] = faults
    return out


def _of_compilers(base: Mapping[str, str], libraries: str) -> dict[str, str]:
    """Return what Triton and torch.compile need.

    Autotuners keep which kernel was the fastest, and the name of the device does not always tell such a file from one
    of a device. So the caches of rehearsals are apart, and none is shared between machines.
    """
    own = _own_cache(base)
    return {
        "TRITON_LIBCUDA_PATH": libraries,  # what its launchers are linked with, instead of the system's
        "TRITON_CACHE_DIR": _apart(base.get("TRITON_CACHE_DIR"), own / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": _apart(base.get("TORCHINDUCTOR_CACHE_DIR"), own / "inductor"),
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "0",
    }


def _own_cache(base: Mapping[str, str]) -> Path:
    """Return the folder of the user's caches, or a temporary one where that cannot be written."""
    folder = Path(base.get("XDG_CACHE_HOME") or Path(base.get("HOME", "/")) / ".cache") / "tracehook"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return folder if os.access(there, os.W_OK) else Path(tempfile.gettempdir()) / f"tracehook-{os.getuid()}"


def _apart(cache: str | None, default: Path) -> str:
    """Return the folder of rehearsals in a cache that the program chose."""
    path = Path(cache) if cache else default
    return str(path if path.name == "rehearsal" else path / "rehearsal")


def _before(there: str, *first: str) -> str:
    return ":".join([*first, *(part for part in there.split(":") if part and part not in first)])


def violations(scratch: Path) -> list[dict[str, Any]]:
    """Return the broken rules that the processes of a rehearsal left in `scratch`, oldest process first."""
    found = []
    for path in sorted(scratch.glob("violations.*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"rule": "?", "sentence": f"unreadable line in {path.name}"})
    return found


def registered_in_vain(scratch: Path) -> str:
    """Return in one line how many calls could not use memory that was registered for them; "" if all could.

    A process that was killed left no count.
    """
    names = ("registered_cuda_malloc", "registered_not_exportable")
    total: Counter[str] = Counter()
    for path in scratch.glob("summary.*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                total.update({name: row.get(name, 0) for name in names})
    if not total.total():
        return ""
    return (
        f"NCCL could not use registered memory in {total.total()} calls "
        f"(cudaMalloc memory: {total['registered_cuda_malloc']}, "
        f"memory that cannot be exported: {total['registered_not_exportable']})"
    )
