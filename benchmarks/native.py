"""Build the small libraries that the benchmarks load, next to nothing else: g++ and torch's own headers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parent / "tracehook" / "cpp"
BUILD = HERE.parent / "build" / "benchmarks"


def _torch() -> list[str]:
    """Return the options for the running torch: of its minor, which is the first line, the folders with headers."""
    locate = SOURCES / "torch" / "locate.py"
    found = subprocess.run([sys.executable, locate], check=True, capture_output=True, text=True).stdout
    folders = found.splitlines()[0].partition("|")[2].split(",")
    libraries = Path(folders[0]).parent / "lib"
    return [*(f"-I{folder}" for folder in folders), f"-L{libraries}", "-lc10", "-lc10_cuda"]


def build(source: str, name: str, *options: str) -> Path:
    """Compile `source` into ``lib<name>.so`` and return its path."""
    BUILD.mkdir(parents=True, exist_ok=True)
    target = BUILD / f"lib{name}.so"
    mine = BUILD / f"lib{name}.{os.getpid()}.so"  # other ranks build the same file
    subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", mine, HERE / source, *options], check=True)
    return mine.replace(target)


def hot_path() -> Path:
    """Return a library with ``attach_bare_tracker()`` and ``best_pair_ns()``, for the running torch."""
    return build("hot_path.cpp", "hot_path", "-fvisibility=hidden", *_torch())


def caller() -> Path:
    """Return the library that calls NCCL through slots, linked to ``libnccl.so.2``: the one that is loaded already."""
    return build("caller.cpp", "caller", "-Wl,-z,lazy", *_nccl())


def peer_segments() -> Path:
    """Return the native part of ``peers``, linked to the NCCL that is loaded already."""
    return build("others/segments.cpp", "peer_segments", "-fvisibility=hidden", *_nccl())


def placement() -> Path:
    """Return a library that measures the placement check, made of tracehook's own sources."""
    nccl = [SOURCES / "nccl" / name for name in ("placement.cpp", "graphs.cpp", "api.cpp")]
    return _with_registrar("placement", [*nccl, SOURCES / "cuda" / "runtime.cpp"], "-ldl", "-Wl,-z,defs")


def journal() -> Path:
    """Return a library with a ring and a registrar, made of tracehook's own sources."""
    return _with_registrar("journal", [], "-pthread")


def _with_registrar(name: str, files: list[Path], *options: str) -> Path:
    """Compile a benchmark with the sources that know neither torch, CUDA nor Python, and with `files`."""
    own = [file for room in ("events", "registrar", "windows") for file in sorted((SOURCES / room).glob("*.cpp"))]
    BUILD.mkdir(parents=True, exist_ok=True)
    # As one file: what they include takes most of the time.
    unit = BUILD / f"{name}.{os.getpid()}.cpp"
    unit.write_text("".join(f'#include "{file}"\n' for file in (HERE / f"{name}.cpp", *own, *files)))
    try:
        return build(str(unit), name, "-fvisibility=hidden", f"-I{SOURCES}", *options)
    finally:
        unit.unlink()


def _nccl() -> list[str]:
    folders = [Path(site) / "nvidia" / "nccl" / "lib" for site in sys.path]
    library = next(folder for folder in folders if folder.exists())
    return [f"-L{library}", "-l:libnccl.so.2"]
