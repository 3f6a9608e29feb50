"""Which hook library fits the running torch, and where it lies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_ONLY_READS = (
    "this installation has no native part (tracehook._core), so it can only read logs; expected the wheel for Linux on "
    "x86-64 and the version of this Python, or a build from the sources"
)
_OWN = Path(__file__).parents[1]


def directory() -> Path:
    """Return the folder of the installed native libraries: beside ``_core``, also in an editable install.

    Loads none of them. Raises ImportError if there is no ``_core``.
    """
    found = importlib.util.find_spec("tracehook._core")
    if found is None or found.origin is None:
        raise ImportError(why_no_core(), name="tracehook._core")
    return Path(found.origin).parent


def minor_of(version: str) -> str:
    """Return ``2.11`` for ``2.11.0+cu130``."""
    return ".".join(version.split(".")[:2])


def available() -> list[str]:
    """Return the torch minors for which a hook library is installed."""
    names = (directory() / "_hooks").glob("libtracehook_torch*.so")
    return sorted((path.stem.removeprefix("libtracehook_torch") for path in names), key=_order)


def _order(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split(".") if part.isdigit())


def path_for(torch_version: str, /) -> Path | None:
    """Return the library for `torch_version`; None if there is none."""
    path = directory() / "_hooks" / f"libtracehook_torch{minor_of(torch_version)}.so"
    return path if path.exists() else None


def why_no_core(own: Path = _OWN, path: list[str] = sys.path) -> str:
    """Return what was imported, what it hides, and what to do.

    A program that lies in a checkout imports the folder with the sources, since its own folder comes first in sys.path.
    """
    hidden = next((found for found in map(Path, path) if any(found.glob("tracehook/_core.*.so"))), None)
    is_source = (own / "cpp" / "CMakeLists.txt").exists()
    if hidden is None and not is_source:
        return _ONLY_READS
    seen = f"{own} was imported, which has no native part (tracehook._core)"
    build = f"pip install --editable {own.parent}" if is_source else f"remove {own}"
    if hidden is None:
        return f"{seen}; build it: {build}"
    return f"{seen} and hides {hidden / 'tracehook'}, which has one; keep the program out of {own.parent}, or: {build}"
