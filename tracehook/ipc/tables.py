"""The two tables of this process: what peers have of its memory, and what it has of theirs."""

from __future__ import annotations

from tracehook.ipc.exports import Exports
from tracehook.ipc.imports import Imports

IMPORTS = Imports()
EXPORTS = Exports(IMPORTS.contains)
