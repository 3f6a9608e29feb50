"""Fetch the headers of each torch in the table of versions, for a wheel that has a hook library for every one.

Run by `make wheel` in the building interpreter: fetch_headers.py FOLDER [RELEASE...], the folder to fill, and the
releases of which there may be only a build without CUDA, so that the wheel goes without. Downloads wheels of torch
(half a gigabyte each, without what they require), keeps their headers, and prints the folders, by semicolons.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tracehook import versions


def fetch(release: str, folder: Path) -> bool:
    """Fill `folder` with the headers of one torch; False if its wheel is not of a CUDA build."""
    if folder.exists():
        return True
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:  # there, so that the move is one step
        download = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "-q",
            "--no-deps",
            "-d",
            scratch,
        ]
        subprocess.run([*download, f"torch=={release}"], check=True)
        (wheel,) = Path(scratch).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            names = packed.namelist()
            if "torch/lib/libc10_cuda.so" not in names:
                return False
            wanted = [name for name in names if name.startswith("torch/include/") or name == "torch/version.py"]
            packed.extractall(Path(scratch, "headers"), wanted)
        Path(scratch, "headers").rename(folder)
    return True


def main() -> None:
    """Fetch all; say which could not be had."""
    target, may_lack = Path(sys.argv[1]), sys.argv[2:]
    folders = []
    for row in versions.ROWS:
        folder = target / row.release
        if fetch(row.release, folder):
            folders.append(str((folder / "torch").absolute()))
            continue
        found = f"tracehook: torch {row.release}, as pip finds it, is a build without CUDA"
        if row.release not in may_lack:
            raise SystemExit(f"{found}; the wheel needs the headers of one with CUDA")
        print(f"{found}: no library", file=sys.stderr)
    print(";".join(folders))


if __name__ == "__main__":
    main()
