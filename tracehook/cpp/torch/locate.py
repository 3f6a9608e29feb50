"""Print what CMake needs to compile the hook library: torch minor; torch's root; CUDA headers; C++ ABI.

Run by the building interpreter. Exits with 1 and one line on stderr if it has no CUDA build of torch, or no CUDA
headers (they come from packages; a CUDA toolkit of the system is not used, because it need not be the one torch was
built with).
"""

import importlib.util
import sys
from pathlib import Path
from typing import NoReturn


def fail(why: str) -> NoReturn:
    """End with the one line that CMake passes on."""
    print(f"tracehook: {why}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Find torch and the headers without importing torch, which would load hundreds of megabytes."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        fail("torch is not installed in the building interpreter")
    root = Path(spec.origin).parent
    versions: dict[str, object] = {}
    exec((root / "version.py").read_text(), versions)
    if not (root / "lib" / "libc10_cuda.so").exists():
        fail(f"torch {versions['__version__']} is a build without CUDA")
    minor = ".".join(str(versions["__version__"]).split(".")[:2])
    # In each site directory: nvidia/cu13/include and the like, or (CUDA 12) nvidia/cuda_runtime/include.
    folders = []
    for site in [root.parent, *map(Path, sys.path)]:
        folders.extend(sorted((site / "nvidia").glob("cu[0-9]*/include"), reverse=True))
        folders.append(site / "nvidia" / "cuda_runtime" / "include")
    includes: list[Path] = []
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        found = next((folder for folder in folders if (folder / header).exists()), None)
        if found is None:
            fail(f"{header} is missing: pip install nvidia-cuda-runtime nvidia-cuda-crt (of torch's CUDA major)")
        elif found not in includes:
            includes.append(found)
    print(f"{minor};{root};{','.join(map(str, includes))};1")


if __name__ == "__main__":
    main()
