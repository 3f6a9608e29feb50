"""Which hook library fits the running torch, and where it lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tracehook.hook import no_core


def directory() -> Path:
    """Return the folder of the installed native libraries: beside ``_core``, also in an editable install.

    Loads none of them. Raises ImportError if there is no ``_core``.
    """
    found = importlib.util.find_spec("tracehook._core")
    if found is None or found.origin is None:
        raise ImportError(no_core.why(), name="tracehook._core")
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
