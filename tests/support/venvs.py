"""An environment of its own in a moment: it sees packages that lie somewhere else, and no editable tracehook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def make_venv(folder: Path, packages: list[str]) -> Path:
    """Make one that sees these folders of packages; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in packages))
    return folder / "bin" / "python"
