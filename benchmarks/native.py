"""Build the small libraries that the benchmarks load, next to nothing else: g++ and torch's own headers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmarks"


def _headers() -> list[str]:
    locate = HERE.parent / "tracehook" / "cpp" / "torch" / "locate.py"
    facts = subprocess.run([sys.executable, locate], check=True, capture_output=True, text=True).stdout.strip()
    _, root, includes, _ = facts.split(";")
    return [f"-I{root}/include", *(f"-I{path}" for path in includes.split(",")), f"-L{root}/lib"]


def build(source: str, name: str, *options: str) -> Path:
    """Compile `source` into ``lib<name>.so`` and return its path."""
    BUILD.mkdir(parents=True, exist_ok=True)
    target = BUILD / f"lib{name}.so"
    mine = BUILD / f"lib{name}.{os.getpid()}.so"  # other ranks build the same file
    subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", mine, HERE / source, *options], check=True)
    return mine.replace(target)


def bare_tracker() -> Path:
    """Return a library with ``attach_bare_tracker()``, for the running torch."""
    return build("bare_tracker.cpp", "bare_tracker", "-fvisibility=hidden", *_headers(), "-lc10", "-lc10_cuda")


def caller() -> Path:
    """Return the library that calls NCCL through slots, linked to ``libnccl.so.2``: the one that is loaded already."""
    return build("caller.cpp", "torch_cuda_caller", "-Wl,-z,lazy", *_nccl())


def peer_segments() -> Path:
    """Return the native part of ``peers``, linked to the NCCL that is loaded already."""
    return build("peers/segments.cpp", "peer_segments", "-fvisibility=hidden", *_nccl())


def placement() -> Path:
    """Return a library that measures the placement check, made of tracehook's own sources."""
    sources = HERE.parent / "tracehook" / "cpp"
    files = [
        *sorted((sources / "core").glob("*.cpp")),
        sources / "nccl" / "placement.cpp",
        sources / "nccl" / "api.cpp",
    ]
    return build("placement.cpp", "placement", "-fvisibility=hidden", f"-I{sources}", *map(str, files), "-ldl")


def _nccl() -> list[str]:
    folders = [Path(site) / "nvidia" / "nccl" / "lib" for site in sys.path]
    library = next(folder for folder in folders if folder.exists())
    return [f"-L{library}", "-l:libnccl.so.2"]
