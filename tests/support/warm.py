"""Warm servers for the rehearsals of this process: torch is imported once for each setting that it reads then."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tracehook.rehearsal import emulation, program
from tracehook.rehearsal.warm import Warm

# What the command and the launchers of the tests want besides torch.
_PRELOAD = ("tracehook.commands", "torch.distributed.run", "tracehook.hook.service", "numpy")
# 0: every process imports torch for itself.
WANTED = os.environ.get("TRACEHOOK_TEST_WARM", "1") != "0"
_started: dict[frozenset[tuple[str, str]], Warm] = {}  # by what torch reads when it is imported


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with the emulated libraries loaded, as they are in the server."""
    emulated = emulation.environment(1, Path(tempfile.gettempdir()), base=base)
    return {name: value for name, value in emulated.items() if not name.startswith("TRACEHOOK_EMU_")}


def server(base: Mapping[str, str]) -> Warm:
    """Return the server for `base`, started by the first who asks; it ends with this process."""
    settings = frozenset(program.read_at_import(base).items())
    if settings not in _started:
        _started[settings] = Warm(environment(base), _PRELOAD)
        atexit.register(_started[settings].close)
    return _started[settings]


def living(run: str) -> set[int]:
    """Return the processes of a run that the server has forked, and theirs, as far as they have not ended."""
    return {pid for started in _started.values() for pid in started.living(run)}
