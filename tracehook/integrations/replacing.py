"""Puts other objects under the names of a module: now, or when the module is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tracehook.log.stderr import warn


def replace(module: ModuleType, wanted: Mapping[str, Any]) -> list[str]:
    """Replace names of a module, also in the modules that imported the very objects.

    Returns:
        the names that were replaced: those that the module has.

    """
    there = [name for name in wanted if hasattr(module, name)]
    for name in there:
        old, new = getattr(module, name), wanted[name]
        for holder in [module, *(other for other in list(sys.modules.values()) if isinstance(other, ModuleType))]:
            for found in [key for key, value in list(vars(holder).items()) if value is old]:
                setattr(holder, found, new)
    return there


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with the module: now if it is imported already, else at the end of its import.

    What `act` raises becomes a line on stderr: the import of somebody else's module goes on.
    """
    if name in sys.modules:
        _guarded(act, sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


def _guarded(act: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        act(module)
    except Exception as problem:
        warn(f"{module.__name__} stays as it is: {type(problem).__name__}: {problem}")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and hears when it was imported."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return what the first other finder finds, with a loader that tells us."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target) if not isinstance(finder, _Finder) else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._loaded)
                return spec
        return None

    def _loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        _guarded(self._act, module)


class _Loader(importlib.abc.Loader):
    """Loads as another loader does. Afterwards the module has that loader again."""

    def __init__(self, loader: importlib.abc.Loader, loaded: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and tell."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded(module)
