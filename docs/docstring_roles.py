"""An extension of griffe for docs/api.md: a role such as ``:func:`enable` `` in a docstring becomes a link.

A name that docs/api.md does not have makes `make docs` fail.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|data):`(?:([^`<]+?) <)?([\w.]+)>?`")


class Roles(griffe.Extension):
    """Turns the roles of all docstrings of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Turn those of a package, when all of it was read: a name may stand below the docstring that names it."""
        self._turn(pkg)

    def _turn(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(
                lambda role: f"[`{role[1] or role[2]}`][{_whole(role[2], obj)}]", obj.docstring.value
            )
        for member in obj.members.values():
            if not member.is_alias:
                self._turn(member)


def _whole(name: str, obj: griffe.Object) -> str:
    """Return the whole path of a name, as the place where it stands sees it."""
    first, dot, rest = name.partition(".")
    try:
        return f"{obj.resolve(first)}{dot}{rest}"
    except griffe.NameResolutionError:
        return name
