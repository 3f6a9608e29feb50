"""Print what is needed to compile hook libraries, a line each: torch minor | folders with headers, by commas.

Run by the building interpreter: for the torch that it has, if that is a CUDA build, and for each folder given as an
argument (of the layout of a torch wheel: include/ and version.py). A minor comes once. Exits with 1 and one line on
stderr if there is no torch to compile for, a folder that was given cannot be used, or CUDA's headers are missing. These
come from packages: a toolkit of the system need not be the one torch was built with.

With --package it prints the requirement for CUDA's headers that torch does not bring; nothing for a torch without CUDA.
"""

import importlib.util
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

_VERSION = re.compile(r"^__version__\s*(?::[^=]*)?=\s*['\"](\d+\.\d+)\b", re.MULTILINE)


def fail(why: str) -> NoReturn:
    """End with the one line that CMake passes on."""
    print(f"tracehook: {why}", file=sys.stderr)
    sys.exit(1)


def installed() -> Path | None:
    """Return the folder of the interpreter's torch, without importing it; None if there is none."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def is_cuda_build(root: Path | None) -> bool:
    """Whether it is the folder of a torch that a hook library can be compiled for."""
    return root is not None and (root / "lib" / "libc10_cuda.so").exists()


def leave_isolation() -> None:
    """Begin anew with the packages of the environment, if it was hidden from us.

    pip builds with the interpreter of the environment that it installs into, and hides the packages of this environment
    by a PYTHONPATH of its own.
    """
    if "PYTHONPATH" in os.environ and not sys.flags.ignore_environment:
        os.execv(sys.executable, [sys.executable, "-E", *sys.argv])


def nothing_to_compile_for(own: Path | None) -> NoReturn:
    """End, because the hook library would be missing without anybody's wish."""
    seen = f"{sys.prefix} has no torch" if own is None else f"{own} is a torch without CUDA"
    fail(f"no hook library can be compiled: {seen}; expected a CUDA build of torch there. Install one first")


def minor_of(root: Path) -> str:
    """Return ``2.11`` for a folder with torch 2.11.0."""
    try:
        text = (root / "version.py").read_text(encoding="utf-8")
    except OSError as problem:
        fail(f"{root}: {problem.strerror}: {problem.filename}; expected the folder `torch` of a wheel")
    version = _VERSION.search(text)
    if version is None:
        fail(f"{root}/version.py names no version; expected a line like __version__ = '2.11.0'")
    if not (root / "include" / "c10" / "cuda" / "CUDACachingAllocator.h").exists():
        fail(f"{root} has no headers of a CUDA build of torch")
    return version[1]


def cuda_headers() -> list[Path]:
    """Return the folders with the headers of the CUDA runtime, of the newest CUDA that is installed."""
    # In each site directory: nvidia/cu13/include and the like, or (CUDA 12) nvidia/cuda_runtime/include.
    folders: list[Path] = []
    for site in map(Path, sys.path):
        folders.extend(sorted((site / "nvidia").glob("cu[0-9]*/include"), reverse=True))
        folders.append(site / "nvidia" / "cuda_runtime" / "include")
        folders.append(site / "nvidia" / "cuda_nvcc" / "include")
    includes: list[Path] = []
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        found = next((folder for folder in folders if (folder / header).exists()), None)
        if found is None:
            fail(f"{header} is missing in {sys.prefix}: pip install '{headers_of_cuda() or 'nvidia-cuda-runtime'}'")
        elif found not in includes:
            includes.append(found)
    return includes


def headers_of_cuda() -> str | None:
    """Return the requirement for the CUDA headers that torch does not bring; None for a torch without CUDA."""
    for runtime, headers in (
        ("nvidia-cuda-runtime", "nvidia-cuda-crt"),
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12"),
    ):
        try:
            major_minor = ".".join(metadata.version(runtime).split(".")[:2])
        except metadata.PackageNotFoundError:
            continue
        return f"{headers}=={major_minor}.*"
    return None


def main() -> None:
    """Print the lines."""
    if sys.argv[1:] == ["--package"]:
        print(headers_of_cuda() or "", end="")
        return
    own = installed()
    if not is_cuda_build(own):
        leave_isolation()
    roots = [*([own] if own is not None and is_cuda_build(own) else []), *map(Path, sys.argv[1:])]
    if not roots:
        nothing_to_compile_for(own)
    by_minor: dict[str, Path] = {}
    for root in roots:
        by_minor.setdefault(minor_of(root), root)
    for minor, root in by_minor.items():
        print(f"{minor}|{','.join(map(str, [root / 'include', *cuda_headers()]))}")


if __name__ == "__main__":
    main()
