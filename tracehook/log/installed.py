"""Whether the import of a name runs an installed package, and no file of the program that has the same name."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def is_installed(name: str) -> bool:
    """Return True also if the module is there by now, or if nothing has this name: then no code of the program runs.

    Beside an installed package lies what pip, conda or a distribution noted down of it, under its name or a longer one
    (`attrs` brings `attr`). Python's own modules lie where `os` does.
    """
    if name in sys.modules:
        return True
    try:
        spec = PathFinder.find_spec(name)
        if spec is None:
            return True
        if name in sys.stdlib_module_names:
            return Path(spec.origin or "").is_relative_to(Path(os.__file__).parent)
        folders = spec.submodule_search_locations or [spec.origin or ""]
        notes = [note for folder in folders for note in Path(folder).parent.glob(f"{name}*-info")]
        return bool(spec.origin and notes)
    except (OSError, ValueError):  # what is on the path of the program cannot be read
        return False
