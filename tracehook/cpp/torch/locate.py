"""Print what is needed to compile hook libraries, a line each: torch minor | folders with headers, by commas.

Run by the building interpreter: for the torch that it has, if that is a CUDA build, and for each folder given as an
argument (of the layout of a torch wheel: include/ and version.py). A minor comes once. Exits with 1 and one line on
stderr if a folder that was given cannot be used, or CUDA's headers are missing. These come from packages: a toolkit of
the system need not be the one torch was built with.
"""

import importlib.util
import re
import sys
from pathlib import Path
from typing import NoReturn

_VERSION = re.compile(r"^__version__\s*(?::[^=]*)?=\s*['\"](\d+\.\d+)\b", re.MULTILINE)


def fail(why: str) -> NoReturn:
    """End with the one line that CMake passes on."""
    print(f"tracehook: {why}", file=sys.stderr)
    sys.exit(1)


def installed() -> Path | None:
    """Return the folder of the interpreter's torch, without importing it; None if it is no CUDA build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    return root if (root / "lib" / "libc10_cuda.so").exists() else None


def minor_of(root: Path) -> str:
    """Return ``2.11`` for a folder with torch 2.11.0."""
    try:
        text = (root / "version.py").read_text()
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
            fail(f"{header} is missing: pip install nvidia-cuda-runtime nvidia-cuda-crt (of torch's CUDA major)")
        elif found not in includes:
            includes.append(found)
    return includes


def main() -> None:
    """Print the lines."""
    own = installed()
    roots = [*([own] if own is not None else []), *map(Path, sys.argv[1:])]
    by_minor: dict[str, Path] = {}
    for root in roots:
        by_minor.setdefault(minor_of(root), root)
    for minor, root in by_minor.items():
        print(f"{minor}|{','.join(map(str, [root / 'include', *cuda_headers()]))}")


if __name__ == "__main__":
    main()
