"""Fetch the headers of each torch in the table of versions, for a wheel that has a hook library for every one.

Run by `make wheel` in the building interpreter: fetch_headers.py FOLDER, the folder to fill. Downloads wheels of torch
(half a gigabyte each, without what they require), keeps their headers, and prints the folders, by semicolons.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tracehook import versions


def fetch(release: str, folder: Path) -> None:
    """Fill `folder` with the headers of one torch; end the program if its wheel is not of a CUDA build."""
    if folder.exists():
        return
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
        # By three equal signs pip finds this very build. By two it may prefer 2.13.0+cpu to 2.13.0.
        subprocess.run([*download, f"torch==={release}"], check=True)
        (wheel,) = Path(scratch).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            names = packed.namelist()
            if "torch/lib/libc10_cuda.so" not in names:
                raise SystemExit(
                    f"tracehook: torch {release}, as pip finds it, is a build without CUDA; "
                    "the wheel needs the headers of one with CUDA"
                )
            wanted = [name for name in names if name.startswith("torch/include/") or name == "torch/version.py"]
            packed.extractall(Path(scratch, "headers"), wanted)
        Path(scratch, "headers").rename(folder)


def main() -> None:
    """Fetch all, and print where they are."""
    folders = [Path(sys.argv[1], row.release) for row in versions.ROWS]
    for row, folder in zip(versions.ROWS, folders, strict=True):
        fetch(row.release, folder)
    print(";".join(str((folder / "torch").absolute()) for folder in folders))


if __name__ == "__main__":
    main()
