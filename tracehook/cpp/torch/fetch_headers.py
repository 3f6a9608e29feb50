"""Fetch the headers of each torch in the table of versions, for a wheel that has a hook library for every one.

Run by `make wheel` in the building interpreter; the argument is the folder to fill. Downloads wheels of torch (half a
gigabyte each, without what they require), keeps their headers, and prints the folders, by semicolons.
"""

import shutil
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
    with tempfile.TemporaryDirectory() as scratch:
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
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(scratch, "headers"), folder)
    return True


def main() -> None:
    """Fetch all; say which could not be had."""
    folders = []
    for row in versions.ROWS:
        folder = Path(sys.argv[1], row.release)
        if fetch(row.release, folder):
            folders.append(str((folder / "torch").absolute()))
        else:
            print(
                f"tracehook: torch {row.release}, as found here, is a build without CUDA: no library", file=sys.stderr
            )
    print(";".join(folders))


if __name__ == "__main__":
    main()
