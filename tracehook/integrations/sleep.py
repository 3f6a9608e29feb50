"""A server that sleeps: ``tracehook.pause`` after its own sleep, ``tracehook.resume`` after it woke."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tracehook.log.stderr import warn
from tracehook.symmetric_memory.state import Switch


class Sleep:
    """Pauses and resumes all groups of this process that have windows. All ranks do so at the same point."""

    def __init__(self) -> None:
        self._is_paused = False

    def begin(self) -> None:
        """Give back what no tensor uses, and NCCL's own memory. Never raises: the server sleeps all the same."""
        memory = Switch.memory
        if memory is None or self._is_paused:
            return
        try:
            memory.pause(memory.used())
        except RuntimeError as problem:
            warn(f"{str(problem).removeprefix('tracehook: ')}; the server sleeps, and keeps tracehook's memory")
        else:
            self._is_paused = True

    def end(self) -> None:
        """Let NCCL have its memory again.

        Raises:
            RegistrationError: see :func:`tracehook.resume`.

        """
        memory = Switch.memory
        if memory is not None and self._is_paused:
            memory.resume(memory.used())
            self._is_paused = False


def follow(module: ModuleType, sleep: str, wake: str, is_asleep: Callable[[Any], bool] = lambda _: True) -> None:
    """Follow the sleep of a server, which is that of the class of `module` that has these two methods.

    `is_asleep` tells, after the method, whether the object sleeps wholly. A process has one such object.
    """
    its = Sleep()
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__ == module.__name__ and {sleep, wake} <= vars(found).keys():
            setattr(found, sleep, _then(vars(found)[sleep], lambda self: its.begin() if is_asleep(self) else None))
            setattr(found, wake, _then(vars(found)[wake], lambda _: its.end()))


def _then(method: Callable[..., Any], act: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a method that does the same, and `act` afterwards."""

    @functools.wraps(method)
    def both(self: Any, *given: Any, **named: Any) -> Any:
        result = method(self, *given, **named)
        act(self)
        return result

    return both
