"""Why there is no native part where this package was imported from, in one line."""

from __future__ import annotations

import sys
from pathlib import Path

_ONLY_READS = (
    "this installation has no native part (tracehook._core), so it can only read logs; expected the wheel for Linux on "
    "x86-64 and the version of this Python, or a build from the sources"
)
_OWN = Path(__file__).parents[1]


def why(own: Path = _OWN, path: list[str] = sys.path) -> str:
    """Return what was imported, what it hides, and what to do.

    A program that lies in a checkout imports the folder with the sources, since its own folder comes first in sys.path.
    """
    hidden = next((found for found in map(Path, path) if _has_core(found / "tracehook")), None)
    is_source = (own / "cpp" / "CMakeLists.txt").exists()
    if hidden is None and not is_source:
        return _ONLY_READS
    seen = f"{own} was imported, which has no native part (tracehook._core)"
    build = f"pip install --editable {own.parent}" if is_source else f"remove {own}"
    if hidden is None:
        return f"{seen}; build it: {build}"
    return f"{seen} and hides {hidden / 'tracehook'}, which has one; keep the program out of {own.parent}, or: {build}"


def _has_core(folder: Path) -> bool:
    return any(folder.glob("_core.*.so"))
