"""Build the two small libraries that the benchmarks load, next to nothing else: g++ and torch's own headers."""

from __future__ import annotations

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
    subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", target, HERE / source, *options], check=True)
    return target


def bare_tracker() -> Path:
    """Return a library with ``attach_bare_tracker()``, for the running torch."""
    return build("bare_tracker.cpp", "bare_tracker", "-fvisibility=hidden", *_headers(), "-lc10", "-lc10_cuda")


def caller() -> Path:
    """Return the library that calls NCCL through slots, linked to ``libnccl.so.2``: the one that is loaded already."""
    folders = [Path(site) / "nvidia" / "nccl" / "lib" for site in sys.path]
    library = next(folder for folder in folders if folder.exists())
    return build("caller.cpp", "torch_cuda_caller", "-Wl,-z,lazy", f"-L{library}", "-l:libnccl.so.2")
