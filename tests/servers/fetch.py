"""Fetch the modules of others that call NCCL, unchanged, out of their wheels. ``make integrations`` runs it.

Argument: the folder for them.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CUPY = "cupy_backends/cuda/"
FRAMEWORKS = Path(__file__).parents[1] / "frameworks" / "requirements.txt"
(MEGATRON,) = (line for line in FRAMEWORKS.read_text().splitlines() if line.startswith("megatron-core=="))
# What is kept of a wheel: the files whose names begin so.
WHEELS = {
    "sglang==0.5.23": ("sglang/srt/distributed/device_communicators/pynccl", "sglang/srt/plugins/"),
    "vllm==0.33.0": (
        *("vllm/distributed/device_communicators/pynccl", "vllm/plugins/__init__.py"),
        *("vllm/cumem_allocator", "vllm/device_allocator/cumem"),
    ),
    "torch_memory_saver==0.0.10": ("torch_memory_saver",),
    MEGATRON: ("megatron/core/",),
    "nccl4py==0.6.0": ("nccl/",),
    "cuda-core==1.2.2": ("cuda/core/",),  # nccl4py needs it
    "cupy-cuda13x==14.2.0": (
        *("cupy_backends/__init__.py", f"{CUPY}__init__.py", f"{CUPY}_softlink", f"{CUPY}stream", f"{CUPY}api/"),
        *(f"{CUPY}libs/__init__.py", f"{CUPY}libs/nccl"),
    ),
    "nvidia-resiliency-ext==0.7.0": ("nvidia_resiliency_ext/shared_utils/inject_fault.py",),
}
# A wheel for another Python, of which only files are kept that every Python reads.
OPTIONS = {
    "nvidia-resiliency-ext==0.7.0": (
        *("--python-version", "3.12", "--platform", "manylinux_2_39_x86_64", "--only-binary", ":all:"),
    ),
}


def fetch(wheel: str, wanted: tuple[str, ...], target: Path) -> None:
    """Unpack the files of a wheel whose names begin with one of `wanted`."""
    with tempfile.TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", scratch, wheel]
        subprocess.run([*download, *OPTIONS.get(wheel, ())], check=True)
        (file,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.startswith(wanted)]
            archive.extractall(target, names)
    print(f"{wheel}: {len(names)} modules")


def main() -> None:
    """Fetch what is not there yet."""
    target = Path(sys.argv[1])
    for wheel, wanted in WHEELS.items():
        if not all(list(target.glob(f"{beginning}*")) for beginning in wanted):
            fetch(wheel, wanted, target)


if __name__ == "__main__":
    main()
