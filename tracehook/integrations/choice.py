"""Decides whether tracehook makes a framework's symmetric memory, and tells the user. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from tracehook.log.stderr import say_once
from tracehook.settings import from_environment
from tracehook.symmetric_memory.state import Switch

VARIABLE = "SYMM_REGISTER_INTEGRATIONS"


def is_chosen(framework: str) -> bool:
    """Return whether the variable names the framework and tracehook is on in this process.

    If tracehook is off although the variable names the framework, one line says so.
    """
    chosen = from_environment()[0].integrations  # the service has told what it did not understand
    if chosen is None or framework not in chosen:
        return False
    if Switch.host is None:
        say_once(
            f"{VARIABLE} names {framework}, but tracehook is off in this process, so {framework} stays as it is: set "
            "SYMM_REGISTER_HOOK=1 too"
        )
    return Switch.host is not None


def say_replaced(framework: str, module: str, names: Sequence[str]) -> None:
    """Say what tracehook serves from now on."""
    say_once(f"{framework}: tracehook makes its symmetric memory ({module}: {', '.join(names)})")
